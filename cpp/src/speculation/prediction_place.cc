#include "speculation/prediction_place.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {
namespace {

// Number of last tokens that both texts have in common, at most `longest`.
int common_end(std::span<const int32_t> a, std::span<const int32_t> b, int longest) {
  const auto limit = std::min({static_cast<int>(a.size()), static_cast<int>(b.size()), longest});
  int length = 0;
  while (length < limit && a[a.size() - 1 - length] == b[b.size() - 1 - length]) ++length;
  return length;
}

}  // namespace

void PredictionPlace::follow(std::span<const int32_t> prediction, std::span<const int32_t> answer) {
  SPECDEC_CHECK_LE(num_read_, static_cast<int>(answer.size()));
  while (num_read_ < static_cast<int>(answer.size())) {
    const int32_t token = answer[num_read_++];
    const bool goes_on =
        !is_lost() && next_ < static_cast<int>(prediction.size()) && prediction[next_] == token;
    if (goes_on) {
      ++next_;
      ++match_length_;
    } else {
      find(prediction, answer.first(num_read_));
    }
  }
}

void PredictionPlace::find(std::span<const int32_t> prediction, std::span<const int32_t> answer) {
  const int last_place = next_;
  match_length_ = 0;
  has_left_ = true;
  for (int end = 1; end <= static_cast<int>(prediction.size()); ++end) {
    if (prediction[end - 1] != answer.back()) continue;
    const int length = common_end(prediction.first(end), answer, kLongestMatch);
    // Of equal matches the first one after the last place counts, else the last one before.
    if (length > match_length_ || (length == match_length_ && next_ <= last_place)) {
      next_ = end;
      match_length_ = length;
    }
  }
}

}  // namespace specdec
