// Remembers the fastest of several ways to compute a product. The caller defines the ways and times
// them when a product is first asked for.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>

#include "core/dtype.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

inline constexpr int kLeastRowBucket = 128;
inline constexpr int kMostRowBucket = 2048;
// Row counts that share a choice: rounded up to a power of two, at least 128 and at most 2048.
int row_bucket(int num_rows);

// Products that share a choice.
struct GemmKey {
  int out_features = 0;
  int num_k_blocks = 0;
  Finish finish = Finish::kStore;
  bool changes_sums = false;
  DType act_dtype = DType::kBF16;
  int row_bucket = 0;

  auto operator<=>(const GemmKey&) const = default;
};

class GemmTuner {
 public:
  // Returns the seconds that a way takes.
  using Clock = std::function<double(int way)>;

  // The way chosen for these products; none until they were timed.
  std::optional<int> find(const GemmKey& key) const;
  // The same, but the first time it times every way. Among the ways nearly as fast as the fastest
  // it chooses the first.
  int choose(const GemmKey& key, int num_ways, const Clock& seconds_of);
  void forget() { choices_.clear(); }

 private:
  std::map<GemmKey, int> choices_;
};

}  // namespace specdec::cuda
