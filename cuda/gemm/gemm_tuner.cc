#include "cuda/gemm/gemm_tuner.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/check.h"

namespace specdec::cuda {
namespace {

constexpr double kNearlyAsFast = 1.02;  // two timings of one way may differ by more

}  // namespace

int row_bucket(int num_rows) {
  const unsigned bucket = std::bit_ceil(static_cast<unsigned>(num_rows));
  return std::clamp(static_cast<int>(bucket), kLeastRowBucket, kMostRowBucket);
}

std::optional<int> GemmTuner::find(const GemmKey& key) const {
  const auto found = choices_.find(key);
  return found != choices_.end() ? std::optional(found->second) : std::nullopt;
}

int GemmTuner::choose(const GemmKey& key, int num_ways, const Clock& seconds_of) {
  SPECDEC_CHECK_GT(num_ways, 0);
  if (const std::optional<int> known = find(key)) return *known;
  std::vector<double> seconds;
  for (int way = 0; way < num_ways; ++way) seconds.push_back(seconds_of(way));
  const double limit = *std::ranges::min_element(seconds) * kNearlyAsFast;
  const auto chosen = std::ranges::find_if(seconds, [&](double each) { return each <= limit; });
  const int way = static_cast<int>(chosen - seconds.begin());
  choices_[key] = way;
  return way;
}

}  // namespace specdec::cuda
