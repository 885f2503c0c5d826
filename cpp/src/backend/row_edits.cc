#include "backend/row_edits.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace specdec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void forbid_outside(std::span<const uint32_t> mask, std::span<float> logits) {
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    const uint32_t word = begin / 32 < mask.size() ? mask[begin / 32] : 0;
    if (word == ~0u) continue;
    const std::span<float> part =
        logits.subspan(begin, std::min<size_t>(32, logits.size() - begin));
    for (size_t i = 0; i < part.size(); ++i) {
      if ((word >> i & 1u) == 0) part[i] = -kInfinity;
    }
  }
}

}  // namespace

void apply_masks(const SampleRow& params, std::span<float> logits, std::span<float> scratch) {
  if (!params.allowed_mask.empty()) forbid_outside(params.allowed_mask, logits);
  const auto is_known = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (const auto allowed = params.allowed_token_ids; !allowed.empty()) {
    SPECDEC_CHECK(allowed.size() <= scratch.size());
    for (size_t i = 0; i < allowed.size(); ++i) {
      SPECDEC_CHECK(is_known(allowed[i]));
      scratch[i] = logits[allowed[i]];
    }
    std::ranges::fill(logits, -kInfinity);
    for (size_t i = 0; i < allowed.size(); ++i) logits[allowed[i]] = scratch[i];
  }
  for (const int32_t token : params.banned_token_ids) {
    SPECDEC_CHECK(is_known(token));
    logits[token] = -kInfinity;
  }
}

void apply_bias(const SampleRow& params, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) {
    SPECDEC_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
    logits[token] += bias;
  }
}

}  // namespace specdec
