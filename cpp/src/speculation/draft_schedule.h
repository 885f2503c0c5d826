// How many tokens a request may draft, by the number of requests that decode.
#pragma once

#include <vector>

#include "specdec/speculative_config.h"

namespace specdec {

class DraftSchedule {
 public:
  // Throws InvalidArgument (field num_speculative_tokens_per_batch_size) unless the inclusive
  // ranges, in any order, start at 1 and do not overlap. Gaps between them, and batch sizes beyond
  // the last, take the entry before. No entry allows more than config.num_speculative_tokens.
  explicit DraftSchedule(const SpeculativeConfig& config);

  int num_speculative_tokens(int num_decoding_requests) const;

 private:
  int constant_ = 0;
  std::vector<BatchSizeRange> ranges_;  // sorted, clamped
};

}  // namespace specdec
