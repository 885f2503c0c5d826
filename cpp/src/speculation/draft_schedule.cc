#include "speculation/draft_schedule.h"

#include <algorithm>

namespace specdec {

DraftSchedule::DraftSchedule(const SpeculativeConfig& config)
    : constant_(config.num_speculative_tokens),
      ranges_(config.num_speculative_tokens_per_batch_size) {
  for (BatchSizeRange& range : ranges_) {
    range.num_speculative_tokens = std::min(range.num_speculative_tokens, constant_);
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const BatchSizeRange& a, const BatchSizeRange& b) { return a.first < b.first; });
}

int DraftSchedule::num_speculative_tokens(int num_decoding_requests) const {
  if (ranges_.empty()) return constant_;
  auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), std::max(num_decoding_requests, 1),
      [](int requests, const BatchSizeRange& range) { return requests < range.first; });
  return std::prev(after)->num_speculative_tokens;
}

}  // namespace specdec
