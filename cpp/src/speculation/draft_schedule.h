// How many tokens a request may draft, by the number of requests that decode.
#pragma once

#include <vector>

#include "specdec/speculative_config.h"

namespace specdec {

class DraftSchedule {
 public:
  // `config` must be valid. Gaps between the ranges, and batch sizes beyond the last, use the
  // previous entry. No entry allows more than config.num_speculative_tokens.
  explicit DraftSchedule(const SpeculativeConfig& config);

  int num_speculative_tokens(int num_decoding_requests) const;

 private:
  int constant_ = 0;
  std::vector<BatchSizeRange> ranges_;  // sorted, clamped
};

}  // namespace specdec
