// How many tokens a request may draft, by the number of requests that decode.
#pragma once

#include <vector>

#include "specdec/speculative_config.h"

namespace specdec {

class DraftSchedule {
 public:
  // Validates the table (throws InvalidArgument, field num_speculative_tokens_per_batch_size):
  // ranges inclusive, the first starts at 1, no overlap, first <= last, counts not negative; order
  // does not matter; gaps and the tail carry the entry before; counts are clamped to
  // config.num_speculative_tokens.
  explicit DraftSchedule(const SpeculativeConfig& config);

  int num_speculative_tokens(int num_decoding_requests) const;

 private:
  int constant_ = 0;
  std::vector<BatchSizeRange> ranges_;  // sorted, clamped
};

}  // namespace specdec
