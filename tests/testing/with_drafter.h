// Configurations of engines that draft, as much as they may.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "specdec/config.h"

namespace specdec::testing {

inline DrafterConfig drafter_of(DraftMethod method, const std::string& model = "") {
  DrafterConfig drafter;
  drafter.method = method;
  drafter.model = model;
  drafter.quantization = "none";
  return drafter;
}

inline DrafterConfig custom(std::shared_ptr<CustomDrafter> drafter) {
  DrafterConfig config = drafter_of(DraftMethod::kCustom);
  config.custom = std::move(drafter);
  return config;
}

inline EngineConfig with_drafter(EngineConfig config, DrafterConfig drafter, int num_tokens,
                                 int width = 1,
                                 DraftLengthPolicy policy = DraftLengthPolicy::kFixed) {
  config.speculative.num_speculative_tokens = num_tokens;
  config.speculative.draft_length_policy = policy;
  config.speculative.tree_width = width;
  config.speculative.drafters = {std::move(drafter)};
  return config;
}

}  // namespace specdec::testing
