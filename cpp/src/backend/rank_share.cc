#include "backend/rank_share.h"

#include <algorithm>

#include "comm/communicator.h"
#include "core/check.h"

namespace specdec {

RankShare::RankShare(const PackArgs& args) : ranks_(args.ranks) {
  SPECDEC_CHECK(args.k_slices == nullptr || !args.gated);
  if (ranks_ == nullptr) {
    SPECDEC_CHECK(args.rank_runs.empty() && args.rank_outputs.empty());
    SPECDEC_CHECK(args.k_slices == nullptr || args.k_slices->run.is_whole());
    return;
  }
  const size_t size = static_cast<size_t>(ranks_->size());
  if (!args.rank_outputs.empty()) {
    SPECDEC_CHECK(args.rank_runs.empty() && args.k_slices == nullptr && !args.gated);
    SPECDEC_CHECK_EQ(args.rank_outputs.size(), size + 1);
    outputs_.assign(args.rank_outputs.begin(), args.rank_outputs.end());
    return;
  }
  SPECDEC_CHECK(args.k_slices != nullptr);
  SPECDEC_CHECK_EQ(args.rank_runs.size(), size);
  SPECDEC_CHECK(args.rank_runs[ranks_->rank()] == args.k_slices->run);
  std::vector<SliceRun> nodes;
  for (const SliceRun run : args.rank_runs) {
    const auto subtrees = subtrees_of(run);
    nodes.insert(nodes.end(), subtrees.begin(), subtrees.end());
    num_planes_.push_back(subtrees.count);
    inputs_.push_back(args.k_slices->bounds[run.first]);
  }
  inputs_.push_back(args.k_slices->whole_features());
  SPECDEC_CHECK(!nodes.empty() && nodes.front().first == 0 && nodes.back().end() == kNumSlices);
  fold_order_ = fold_order_of(nodes);
  SPECDEC_CHECK_EQ(fold_order_.num_left, 1);
}

std::array<const float*, kNumSlices> RankShare::planes_of(
    std::span<const std::span<const std::byte>> parts, int64_t plane_floats) const {
  std::array<const float*, kNumSlices> planes{};
  size_t plane = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto* floats = reinterpret_cast<const float*>(parts[rank].data());
    SPECDEC_CHECK_EQ(parts[rank].size(), num_planes_[rank] * plane_floats * sizeof(float));
    for (int i = 0; i < num_planes_[rank]; ++i) planes[plane++] = floats + i * plane_floats;
  }
  return planes;
}

int RankShare::rank_of_output(int64_t output) const {
  const auto after = std::upper_bound(outputs_.begin(), outputs_.end(), output);
  return static_cast<int>(after - outputs_.begin()) - 1;
}

}  // namespace specdec
