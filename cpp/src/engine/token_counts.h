// How often each token stands in a sequence, kept up as it grows so that a step's penalties cost
// the new tokens only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/op_args.h"

namespace specdec {

class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> tokens) {
    for (int32_t token : tokens) entry(token);
  }
  void add_output(int32_t token) { ++entry(token).output_count; }

  // The counts as if `path` had been output too.
  std::vector<TokenCount> counts_after(std::span<const int32_t> path) const {
    std::vector<TokenCount> counts = counts_;
    for (int32_t token : path) {
      const auto known = index_.find(token);
      auto entry =
          known != index_.end()
              ? counts.begin() + static_cast<int64_t>(known->second)
              : std::find_if(counts.begin() + static_cast<int64_t>(counts_.size()), counts.end(),
                             [&](const TokenCount& c) { return c.token_id == token; });
      if (entry == counts.end()) {
        entry = counts.insert(entry, {.token_id = token, .output_count = 0});
      }
      ++entry->output_count;
    }
    return counts;
  }

  // Distinct tokens, in order of first appearance.
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  TokenCount& entry(int32_t token) {
    const auto [it, is_new] = index_.try_emplace(token, counts_.size());
    if (is_new) counts_.push_back({.token_id = token, .output_count = 0});
    return counts_[it->second];
  }

  std::unordered_map<int32_t, size_t> index_;
  std::vector<TokenCount> counts_;
};

}  // namespace specdec
