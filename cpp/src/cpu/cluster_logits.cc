// Projections of which every row wants the outputs of a few clusters: an LM head whose rows are
// ordered by cluster. Only blocks of the weight that some row wants are read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sets the flags [num_clusters] of the clusters with the greatest scores.
void choose_clusters(const float* scores, int num_kept, std::span<uint8_t> is_kept) {
  std::vector<int> order(is_kept.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto score = [&](int i) { return std::isnan(scores[i]) ? -kInfinity : scores[i]; };
  std::ranges::nth_element(order, order.begin() + (num_kept - 1), [&](int a, int b) {
    return score(a) > score(b) || (score(a) == score(b) && a < b);
  });
  std::ranges::fill(is_kept, uint8_t{0});
  for (int i = 0; i < num_kept; ++i)
    is_kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
}

}  // namespace

void CpuBackend::cluster_logits(const ClusterLogitsArgs& args) {
  const LinearArgs& linear = args.linear;
  const auto& weight = static_cast<const CpuPackedLinear&>(*linear.weight);
  const int64_t num_rows = linear.in.num_rows;
  const int64_t num_outputs = weight.out_features();
  SPECDEC_CHECK(args.num_kept > 0 && args.num_kept <= args.num_clusters);
  SPECDEC_CHECK_LE(args.num_clusters, kMaxClusters);
  SPECDEC_CHECK_EQ(num_outputs % args.num_clusters, 0);
  SPECDEC_CHECK(!linear.accumulate);
  const auto num_clusters = static_cast<size_t>(args.num_clusters);
  const int64_t size = num_outputs / args.num_clusters;  // of a cluster
  std::vector<uint8_t> is_kept(static_cast<size_t>(num_rows) * num_clusters);
  const auto of_row = [&](int64_t row) {
    return std::span(is_kept).subspan(static_cast<size_t>(row) * num_clusters, num_clusters);
  };
  pool_.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      choose_clusters(args.scores + row * args.num_clusters, args.num_kept, of_row(row));
    }
  });
  if (weight.share().ranks() != nullptr) {
    this->linear(linear);
  } else {
    constexpr int64_t kOutputs = CpuPackedLinear::kBlockOutputs;
    std::vector<uint8_t> is_wanted(static_cast<size_t>(weight.num_blocks()));
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t cluster = 0; cluster < args.num_clusters; ++cluster) {
        if (of_row(row)[static_cast<size_t>(cluster)] == 0) continue;
        const auto first = is_wanted.begin() + cluster * size / kOutputs;
        const auto last = is_wanted.begin() + ((cluster + 1) * size - 1) / kOutputs;
        std::fill(first, last + 1, uint8_t{1});
      }
    }
    projector_.run_some(weight, linear.in, is_wanted,
                        [&](const SumsCell& cell) { store(linear, cell); });
  }
  pool_.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t cluster = 0; cluster < args.num_clusters; ++cluster) {
        if (of_row(row)[static_cast<size_t>(cluster)] != 0) continue;
        std::fill_n(linear.out + row * num_outputs + cluster * size, size, -kInfinity);
      }
    }
  });
}

}  // namespace specdec::cpu
