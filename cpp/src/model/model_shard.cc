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

KSlices slices_of_attention(const AttentionHeads& heads) {
  return KSlices::whole(heads.q_size(), std::lcm(int64_t{heads.head_dim}, kSliceUnit));
}

// Runs of whole groups of heads that share a KV head, or of heads of a single group.
std::optional<std::vector<SliceRun>> share_attention(const AttentionHeads& heads, int size) {
  const int64_t group = int64_t{heads.group_size()} * heads.head_dim;
  return share_slices(slices_of_attention(heads), size, [&](int64_t begin, int64_t end) {
    return (begin % group == 0 && end % group == 0) || begin / group == (end - 1) / group;
  });
}

std::optional<std::vector<SliceRun>> share_inner(int inner_size, int size) {
  return share_slices(KSlices::whole(inner_size, kSliceUnit), size,
                      [](int64_t, int64_t) { return true; });
}

bool can_share_mixer(const LayerSpec& layer, int size) {
  if (layer.mixer == Mixer::kShortConv)
    return share_inner(layer.state.conv_channels, size).has_value();
  return share_attention(shared_heads_of(layer), size).has_value();
}

bool can_share(const ModelConfig& config, int size) {
  if (size == 1) return true;
  return std::ranges::all_of(config.layers, [&](const LayerSpec& layer) {
    return can_share_mixer(layer, size) && share_inner(layer.inner_size, size).has_value() &&
           (layer.shared_inner_size == 0 || share_inner(layer.shared_inner_size, size).has_value());
  });
}

[[noreturn]] void refuse(const ModelConfig& config, int size, const std::string& field) {
  std::string sizes;
  for (const int other : tensor_parallel_sizes(config)) {
    sizes += str_cat(sizes.empty() ? "" : ", ", other);
  }
  if (config.has_states()) {
    throw InvalidArgument(
        field, str_cat(size, " ranks cannot share the layers of ", config.architecture,
                       " evenly enough; sizes that work: ", sizes,
                       "; or give stages of layers to devices by pipeline_parallel_size"));
  }
  const LayerSpec& layer = config.layers.front();
  throw InvalidArgument(
      field, str_cat(size, " ranks cannot share ", layer.heads.num_heads, " heads, ",
                     layer.heads.num_kv_heads, " KV heads and an MLP of ", layer.inner_size,
                     " evenly enough; sizes that work: ", sizes));
}

void check_kv_sources(const ModelConfig& config, const RankCoordinates& coordinates) {
  if (coordinates.num_stages == 1) return;
  if (config.per_layer_dim > 0) {
    throw InvalidArgument("pipeline_parallel_size",
                          str_cat("layers of ", config.architecture,
                                  " read the embeddings, which only the first stage has; write 1"));
  }
  // All stages are checked, so that all ranks refuse.
  RankCoordinates at = coordinates;
  for (at.stage = 0; at.stage < at.num_stages; ++at.stage) {
    const int first = at.first_layer(config.num_layers);
    for (int i = first; i < at.end_layer(config.num_layers); ++i) {
      const int source = config.layers[i].kv_source;
      if (source < 0 || source >= first) continue;
      throw InvalidArgument("pipeline_parallel_size",
                            str_cat("layer ", i, " reads the keys and values of layer ", source,
                                    ", which would be on another stage; write 1"));
    }
  }
}

}  // namespace

AttentionHeads shared_heads_of(const LayerSpec& layer) {
  if (!layer.is_recurrent()) return layer.heads;
  return {.num_heads = layer.state.num_heads,
          .num_kv_heads = layer.state.num_key_heads,
          .head_dim = layer.state.value_dim};
}

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
  check_kv_sources(whole, coordinates);
  if (!can_share(whole, size)) refuse(whole, size, field);
  for (const LayerSpec& layer : whole.layers) {
    const AttentionHeads heads = shared_heads_of(layer);
    if (heads.num_heads == 0) continue;
    const auto is_same = [&](const Attention& known) { return known.heads == heads; };
    if (std::ranges::none_of(attentions_, is_same)) attentions_.push_back(share(heads));
  }
}

ModelShard::Attention ModelShard::share(const AttentionHeads& heads) const {
  Attention attention = {.heads = heads, .slices = slices_of_attention(heads)};
  attention.all_heads.ranks = ranks_;
  if (is_whole()) {
    attention.all_heads.by_rank = {
        {.num_heads = heads.num_heads, .num_kv_heads = heads.num_kv_heads}};
    return attention;
  }
  attention.runs = *share_attention(heads, size_);
  const int group = heads.group_size();
  for (const SliceRun& run : attention.runs) {
    const KSlices slices = attention.slices.cut(run);
    HeadShare& of_rank = attention.all_heads.by_rank.emplace_back();
    of_rank.first_head = static_cast<int>(slices.begin()) / heads.head_dim;
    of_rank.num_heads = static_cast<int>(slices.in_features()) / heads.head_dim;
    of_rank.first_kv_head = of_rank.first_head / group;
    of_rank.num_kv_heads = (of_rank.num_heads + group - 1) / group;
  }
  attention.slices = attention.slices.cut(attention.runs[static_cast<size_t>(rank())]);
  return attention;
}

const ModelShard::Attention& ModelShard::attention(const AttentionHeads& heads) const {
  const auto found =
      std::ranges::find_if(attentions_, [&](const Attention& own) { return own.heads == heads; });
  SPECDEC_CHECK(found != attentions_.end());
  return *found;
}

StateShape ModelShard::state_of(const LayerSpec& layer) const {
  StateShape state = layer.state;
  if (is_whole() || state.empty()) return state;
  if (layer.mixer == Mixer::kShortConv) {
    state.conv_channels = static_cast<int>(inner_slices(state.conv_channels).in_features());
    return state;
  }
  const HeadShare& own = share_of(shared_heads_of(layer));
  state.num_heads = own.num_heads;
  state.num_key_heads = own.num_kv_heads;
  state.conv_channels = static_cast<int>(2 * state.key_size() + state.value_size());
  return state;
}

bool ModelShard::shares_norms(const AttentionHeads& heads, int num_groups) const {
  const int group = heads.num_heads / num_groups;
  return std::ranges::any_of(attention(heads).all_heads.by_rank, [&](const HeadShare& share) {
    return share.first_head % group != 0 || share.num_heads % group != 0;
  });
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
  for (LayerSpec& layer : share.layers) {
    if (layer.kv_source >= 0) layer.kv_source -= first_layer;
    if (layer.is_recurrent()) {
      layer.state = state_of(layer);
    } else {
      const HeadShare& own = share_of(layer.heads);
      layer.heads.num_heads = own.num_heads;
      layer.heads.num_kv_heads = own.num_kv_heads;
    }
    for (int* size : {&layer.inner_size, &layer.shared_inner_size}) {
      if (*size > 0) *size = static_cast<int>(inner_slices(*size).in_features());
    }
  }
  return share;
}

}  // namespace specdec
