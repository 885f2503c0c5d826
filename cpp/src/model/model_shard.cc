#include "model/model_shard.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/config.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Slices of an MLP's inner values, and slices that span heads, are multiples of this: the unit of
// quantised weights and of kernels.
constexpr int64_t kSliceUnit = 64;
// A rank with more than this multiple of an equal share would slow down the others, so sizes that
// need such a share are refused.
constexpr double kMostUneven = 1.25;

// Whether a rank may hold the inputs [begin, end).
using IsShare = std::function<bool(int64_t begin, int64_t end)>;

// Splits slices into runs for `size` ranks, as evenly as possible; empty where the split is too
// uneven.
std::optional<std::vector<SliceRun>> share_slices(const KSlices& slices, int size,
                                                  const IsShare& is_share) {
  constexpr int64_t kNone = -1;
  // Dynamic programme over ranks and slices: the least possible largest share when the first ranks
  // have the slices before `end`, and where the last of these ranks begins.
  using Row = std::array<int64_t, kNumSlices + 1>;
  std::vector<Row> largest(static_cast<size_t>(size) + 1);
  std::vector<Row> begins(static_cast<size_t>(size) + 1);
  for (Row& row : largest) row.fill(kNone);
  largest[0][0] = 0;
  for (size_t rank = 1; rank <= static_cast<size_t>(size); ++rank) {
    for (int end = 1; end <= kNumSlices; ++end) {
      for (int begin = 0; begin < end; ++begin) {
        const int64_t before = largest[rank - 1][static_cast<size_t>(begin)];
        const int64_t from = slices.bounds[static_cast<size_t>(begin)];
        const int64_t to = slices.bounds[static_cast<size_t>(end)];
        if (before == kNone || from == to || !is_share(from, to)) continue;
        const int64_t share = std::max(before, to - from);
        int64_t& best = largest[rank][static_cast<size_t>(end)];
        if (best != kNone && best <= share) continue;
        best = share;
        begins[rank][static_cast<size_t>(end)] = begin;
      }
    }
  }
  const int64_t share = largest.back().back();
  const double equal = static_cast<double>(slices.whole_features()) / size;
  if (share == kNone || (size > 1 && static_cast<double>(share) >= kMostUneven * equal)) return {};
  std::vector<SliceRun> runs(static_cast<size_t>(size));
  int end = kNumSlices;
  for (size_t rank = runs.size(); rank > 0; --rank) {
    const auto begin = static_cast<int>(begins[rank][static_cast<size_t>(end)]);
    runs[rank - 1] = {begin, end - begin};
    end = begin;
  }
  return runs;
}

KSlices slices_of_attention(const ModelConfig& config) {
  return KSlices::whole(int64_t{config.num_heads} * config.head_dim,
                        std::lcm(int64_t{config.head_dim}, kSliceUnit));
}

// Runs of whole groups of heads that share a KV head, or of heads of a single group.
std::optional<std::vector<SliceRun>> share_attention(const ModelConfig& config, int size) {
  const int64_t group = int64_t{config.num_heads / config.num_kv_heads} * config.head_dim;
  return share_slices(slices_of_attention(config), size, [&](int64_t begin, int64_t end) {
    return (begin % group == 0 && end % group == 0) || begin / group == (end - 1) / group;
  });
}

std::optional<std::vector<SliceRun>> share_inner(int inner_size, int size) {
  return share_slices(KSlices::whole(inner_size, kSliceUnit), size,
                      [](int64_t, int64_t) { return true; });
}

bool can_share(const ModelConfig& config, int size) {
  if (size == 1) return true;
  return share_attention(config, size).has_value() &&
         std::ranges::all_of(config.layers, [&](const LayerSpec& layer) {
           return share_inner(layer.inner_size, size).has_value() &&
                  (layer.shared_inner_size == 0 ||
                   share_inner(layer.shared_inner_size, size).has_value());
         });
}

[[noreturn]] void refuse(const ModelConfig& config, int size, const std::string& field) {
  std::string sizes;
  for (const int other : tensor_parallel_sizes(config)) {
    sizes += str_cat(sizes.empty() ? "" : ", ", other);
  }
  throw InvalidArgument(
      field, str_cat(size, " ranks cannot share ", config.num_heads, " heads, ",
                     config.num_kv_heads, " KV heads and an MLP of ", config.layers[0].inner_size,
                     " evenly enough; sizes that work: ", sizes));
}

}  // namespace

std::vector<int> tensor_parallel_sizes(const ModelConfig& config) {
  std::vector<int> sizes;
  for (int size = 1; size <= kMaxTensorParallel; ++size) {
    if (can_share(config, size)) sizes.push_back(size);
  }
  return sizes;
}

ModelShard::ModelShard(const ModelConfig& whole, const RankCoordinates& coordinates,
                       const std::string& field)
    : ModelShard(whole, coordinates, coordinates.stage_size(), field) {}

ModelShard::ModelShard(const ModelConfig& whole, int size)
    : ModelShard(whole, {}, size, "tensor_parallel_size") {}

ModelShard::ModelShard(const ModelConfig& whole, const RankCoordinates& coordinates, int size,
                       const std::string& field)
    : coordinates_(coordinates), ranks_(size > 1 ? coordinates.ranks : nullptr), size_(size) {
  if (whole.layers.empty()) {  // a draft head without attention is not split
    SPECDEC_CHECK(is_whole());
    return;
  }
  if (coordinates.num_stages > whole.num_layers) {
    throw InvalidArgument("pipeline_parallel_size",
                          str_cat(coordinates.num_stages, " stages cannot share ", whole.num_layers,
                                  " layers; write at most ", whole.num_layers));
  }
  attention_slices_ = slices_of_attention(whole);
  if (!can_share(whole, size)) refuse(whole, size, field);
  all_heads_.ranks = ranks_;
  if (is_whole()) {
    all_heads_.by_rank = {{.num_heads = whole.num_heads, .num_kv_heads = whole.num_kv_heads}};
    return;
  }
  attention_runs_ = *share_attention(whole, size);
  const int group = whole.num_heads / whole.num_kv_heads;
  for (const SliceRun& run : attention_runs_) {
    const KSlices slices = attention_slices_.cut(run);
    HeadShare& share = all_heads_.by_rank.emplace_back();
    share.first_head = static_cast<int>(slices.begin()) / whole.head_dim;
    share.num_heads = static_cast<int>(slices.in_features()) / whole.head_dim;
    share.first_kv_head = share.first_head / group;
    share.num_kv_heads = (share.num_heads + group - 1) / group;
  }
  attention_slices_ = attention_slices_.cut(attention_runs_[static_cast<size_t>(rank())]);
}

KSlices ModelShard::inner_slices(int inner_size) const {
  const KSlices slices = KSlices::whole(inner_size, kSliceUnit);
  return is_whole() ? slices : slices.cut(inner_runs(inner_size)[static_cast<size_t>(rank())]);
}

std::vector<SliceRun> ModelShard::inner_runs(int inner_size) const {
  return is_whole() ? std::vector<SliceRun>{} : share_inner(inner_size, size()).value();
}

int64_t ModelShard::largest_inner(int inner_size) const {
  const KSlices slices = KSlices::whole(inner_size, kSliceUnit);
  int64_t most = is_whole() ? inner_size : 0;
  for (const SliceRun& run : inner_runs(inner_size)) {
    most = std::max(most, slices.cut(run).in_features());
  }
  return most;
}

std::vector<int64_t> ModelShard::vocabulary(int64_t num_tokens) const {
  std::vector<int64_t> bounds;
  if (is_whole()) return bounds;
  for (int64_t rank = 0; rank <= size(); ++rank) bounds.push_back(num_tokens * rank / size());
  return bounds;
}

ModelConfig ModelShard::config_of_share(const ModelConfig& whole) const {
  ModelConfig share = whole;
  const int first_layer = coordinates_.first_layer(whole.num_layers);
  const int end_layer = coordinates_.end_layer(whole.num_layers);
  share.num_layers = end_layer - first_layer;
  share.layers.assign(whole.layers.begin() + first_layer, whole.layers.begin() + end_layer);
  share.num_heads = heads().num_heads;
  share.num_kv_heads = heads().num_kv_heads;
  for (LayerSpec& layer : share.layers) {
    for (int* size : {&layer.inner_size, &layer.shared_inner_size}) {
      if (*size > 0) *size = static_cast<int>(inner_slices(*size).in_features());
    }
  }
  return share;
}

}  // namespace specdec
