#include "model/decoder_workspace.h"

#include <algorithm>
#include <array>

#include "model/rope.h"

namespace specdec {
namespace {

Buffer make_table(Backend& backend, const std::vector<float>& values) {
  if (values.empty()) return {};
  const TensorView view{
      .data = values.data(), .dtype = DType::kF32, .shape = {static_cast<int64_t>(values.size())}};
  return backend.make_vector(std::array{view});
}

}  // namespace

DecoderWorkspace::DecoderWorkspace(const ModelConfig& config, Backend& backend, int max_rows) {
  const auto rows = [&](int64_t width, DType dtype) {
    const size_t bytes = static_cast<size_t>(max_rows) * static_cast<size_t>(width);
    return backend.allocate(bytes * size_of(dtype), "decoder workspace");
  };
  const DType act = backend.act_dtype();
  const int64_t hidden_size = config.hidden_size;
  int64_t q_size = 0;
  int inner_size = 0;
  for (const LayerSpec& layer : config.layers) {
    q_size = std::max(q_size, layer.heads.q_size());
    const bool is_dense = layer.mlp != MlpKind::kExperts;
    inner_size = std::max(inner_size, is_dense ? layer.inner_size : layer.shared_inner_size);
  }
  const auto keeps_spare = [](const LayerSpec& layer) {
    return layer.norms != NormPlacement::kInput;
  };
  hidden = rows(hidden_size, DType::kF32);
  if (config.any_layer(keeps_spare)) hidden_spare = rows(hidden_size, DType::kF32);
  if (config.embed_dim != 0) embedded = rows(config.embed_dim, DType::kF32);
  int64_t mixed_size = q_size;
  for (const LayerSpec& layer : config.layers) {
    mixed_size = std::max(mixed_size, layer.mixer == Mixer::kShortConv ? layer.state.conv_channels
                                                                       : layer.state.value_size());
  }
  if (q_size > 0) q = rows(q_size, act);
  mixed = rows(mixed_size, act);
  if (config.attention_gate) attention_gates = rows(q_size, DType::kF32);
  if (inner_size > 0) inner = rows(inner_size, act);
  if (config.any_layer([](const LayerSpec& layer) { return layer.mlp == MlpKind::kExperts; })) {
    router = rows(config.num_experts, DType::kF32);
    normed = rows(hidden_size, act);
    if (!hidden_spare.empty()) block_sum = rows(hidden_size, DType::kF32);
  }
  if (config.laurel_rank > 0) laurel = rows(config.laurel_rank, DType::kF32);
  if (config.per_layer_dim > 0) {
    const int64_t width = int64_t{config.num_layers} * config.per_layer_dim;
    per_layer = rows(width, DType::kF32);
    per_layer_inner = rows(config.per_layer_dim, act);
  }
}

std::vector<Rope> make_ropes(const ModelConfig& config, Backend& backend, int max_model_len) {
  std::vector<Rope> ropes;
  for (const RopeConfig& rope : config.ropes) {
    const int head_dim = rope_head_dim(config, static_cast<int>(ropes.size()));
    if (head_dim == 0) {  // only in layers of other stages
      ropes.emplace_back();
      continue;
    }
    const RopeTables tables = make_rope_tables(rope, head_dim, max_model_len);
    ropes.push_back({.cos = make_table(backend, tables.cos),
                     .sin = make_table(backend, tables.sin),
                     .query_scales = make_table(backend, make_query_scales(rope, max_model_len)),
                     .rotary_dim = rotary_dim(rope, head_dim)});
  }
  return ropes;
}

}  // namespace specdec
