// How a pass of a draft model samples: the user's choice, and what verification makes of it.
#pragma once

#include <cstdint>

#include "specdec/speculative_config.h"

namespace specdec {

enum class DraftSampling : uint8_t {
  kArgmax,       // the most likely tokens, whatever the temperature
  kCoupled,      // with the noise the target will use: agrees as often as it can
  kIndependent,  // with separate noise, for rejection verification
};

constexpr DraftSampling draft_sampling(DraftSampleMethod method, Verification verification) {
  if (method == DraftSampleMethod::kGreedy) return DraftSampling::kArgmax;
  return weighs_drafts(verification) ? DraftSampling::kIndependent : DraftSampling::kCoupled;
}

}  // namespace specdec
