#include "speculation/draft_schedule.h"

#include <algorithm>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kField = "num_speculative_tokens_per_batch_size";

void check_range(const BatchSizeRange& range) {
  const std::string entry =
      str_cat("[", range.first, ", ", range.last, ", ", range.num_speculative_tokens, "]");
  if (range.first < 1) {
    throw InvalidArgument(kField, str_cat("batch sizes start at 1, got ", entry));
  }
  if (range.last < range.first) {
    throw InvalidArgument(kField,
                          str_cat("write [first, last, tokens] with first <= last, got ", entry));
  }
  if (range.num_speculative_tokens < 0) {
    throw InvalidArgument(kField, str_cat("the number of tokens must be 0 or more, got ", entry));
  }
}

}  // namespace

DraftSchedule::DraftSchedule(const SpeculativeConfig& config)
    : constant_(config.num_speculative_tokens),
      ranges_(config.num_speculative_tokens_per_batch_size) {
  if (ranges_.empty()) return;
  for (BatchSizeRange& range : ranges_) {
    check_range(range);
    range.num_speculative_tokens = std::min(range.num_speculative_tokens, constant_);
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const BatchSizeRange& a, const BatchSizeRange& b) { return a.first < b.first; });
  if (ranges_[0].first != 1) {
    throw InvalidArgument(
        kField, str_cat("the first range must start at 1, it starts at ", ranges_[0].first));
  }
  for (size_t i = 1; i < ranges_.size(); ++i) {
    const BatchSizeRange& before = ranges_[i - 1];
    const BatchSizeRange& after = ranges_[i];
    if (after.first > before.last) continue;
    throw InvalidArgument(
        kField, str_cat("ranges must not overlap: [", before.first, ", ", before.last, "] and [",
                        after.first, ", ", after.last, "], both ends count"));
  }
}

int DraftSchedule::num_speculative_tokens(int num_decoding_requests) const {
  if (ranges_.empty()) return constant_;
  auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), std::max(num_decoding_requests, 1),
      [](int requests, const BatchSizeRange& range) { return requests < range.first; });
  return std::prev(after)->num_speculative_tokens;
}

}  // namespace specdec
