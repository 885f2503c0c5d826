#include "specdec/model_facts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/draft_heads/draft_head_config.h"
#include "model/model_shard.h"
#include "specdec/quantization.h"

namespace specdec {
namespace {

constexpr double kFloatBytes = sizeof(float);
// Scale bytes per weight, with one float16 scale per 32 integers.
constexpr double kScaleBytes = 2.0 / kQuantGroup;

double dtype_bytes(const std::string& name, DType absent) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == name_of(dtype)) absent = dtype;
  }
  return absent == DType::kF32 ? 4.0 : 2.0;
}

void set_formats(const ModelConfig& config, const FactsFormats& formats, ModelFacts& facts) {
  const double element = dtype_bytes(formats.dtype, config.checkpoint_dtype);
  facts.layer_bytes = facts.output_bytes = element;
  switch (parse_quantization(formats.quantization)) {
    case Quantization::kInt8:
      facts.layer_bytes = facts.output_bytes = 1.0;
      break;
    case Quantization::kInt4:
      facts.layer_bytes = 0.5 + kScaleBytes;
      facts.output_bytes = 1.0 + kScaleBytes;
      break;
    case Quantization::kFp8:
      facts.layer_bytes = 1.0;
      break;
    default:
      break;
  }
}

// Bytes of an element of the KV cache.
double kv_element_bytes(const ModelConfig& config, const FactsFormats& formats, int head_dim) {
  if (formats.kv_cache_dtype == "int8") return 1.0 + kFloatBytes / head_dim;
  return dtype_bytes(formats.dtype, config.checkpoint_dtype);
}

// Partial sums that a rank receives. It has one of the runs' sums itself.
int num_received(const std::vector<SliceRun>& runs) {
  int count = -1;
  for (const SliceRun& run : runs) count += subtrees_of(run).count;
  return std::max(count, 0);
}

// Bytes that a rank receives from the others when every rank holds an equal part.
double from_others(double total, int num_ranks) { return total * (num_ranks - 1) / num_ranks; }

// A layer's attention and the projection of its result.
PartFacts facts_of_attention(const ModelConfig& whole, const LayerSpec& layer,
                             const ModelShard& shard, const FactsFormats& formats) {
  AttentionHeads heads = {.head_dim = layer.heads.head_dim};  // the largest share
  for (const HeadShare& share : shard.attention(layer.heads).all_heads.by_rank) {
    heads.num_heads = std::max(heads.num_heads, share.num_heads);
    heads.num_kv_heads = std::max(heads.num_kv_heads, share.num_kv_heads);
  }
  const auto q_size = static_cast<double>(heads.q_size());
  const double kv_size = 2.0 * static_cast<double>(heads.kv_size());
  const double inputs = layer.attention_input == AttentionInput::kWithEmbedding ? 2.0 : 1.0;
  PartFacts part{.sliding_window = layer.sliding_window,
                 .query_elements = q_size,
                 .kv_bytes = kv_size * kv_element_bytes(whole, formats, heads.head_dim),
                 .owns_kv = layer.kv_source < 0};
  part.weights = (inputs * (q_size + (part.owns_kv ? kv_size : 0.0)) + q_size) * whole.hidden_size;
  if (whole.attention_gate) part.weights += q_size * whole.hidden_size;
  return part;
}

// What a recurrent layer has in place of attention, of the first rank.
PartFacts facts_of_mixer(const ModelConfig& whole, const LayerSpec& layer,
                         const ModelShard& shard) {
  const StateShape shape = shard.state_of(layer);
  const double channels = shape.conv_channels;
  const auto values = static_cast<double>(shape.value_size());
  const auto matrix = static_cast<double>(shape.matrix_size());
  double width = 0;  // of the mixer's projections, before and after it
  if (layer.mixer == Mixer::kShortConv) {
    width = 4.0 * channels;
  } else {
    // The convolution's inputs, gates of the output, the output and one or two numbers per head.
    width =
        channels + 2.0 * values + (layer.mixer == Mixer::kGatedDelta ? 2.0 : 1.0) * shape.num_heads;
  }
  return {.weights = width * whole.hidden_size,
          .owns_kv = false,
          .state_bytes = kFloatBytes * (static_cast<double>(shape.tail_size()) + matrix),
          // A row's keys and queries are multiplied by the matrix, and its update is added.
          .state_flops = 2.0 * channels * shape.conv_width + 3.0 * 2.0 * matrix};
}

PartFacts facts_of_layer(const ModelConfig& whole, size_t index, const ModelShard& shard,
                         const FactsFormats& formats) {
  const LayerSpec& layer = whole.layers[index];
  const double hidden = whole.hidden_size;
  const double inner = static_cast<double>(shard.largest_inner(layer.inner_size));
  PartFacts part = layer.is_recurrent() ? facts_of_mixer(whole, layer, shard)
                                        : facts_of_attention(whole, layer, shard, formats);
  const int shared_inner = layer.shared_inner_size;
  if (layer.mlp == MlpKind::kExperts) {
    part.weights += hidden * whole.num_experts;
    part.expert_weights = 3.0 * hidden * inner;
    if (shared_inner > 0) {
      part.weights += 3.0 * hidden * static_cast<double>(shard.largest_inner(shared_inner));
      if (!whole.names.shared_gate.empty()) part.weights += hidden;
    }
  } else {
    part.weights += (layer.mlp == MlpKind::kPlain ? 2.0 : 3.0) * hidden * inner;
  }
  // Every rank has the following whole.
  part.weights += hidden * (2.0 * whole.per_layer_dim + 2.0 * whole.laurel_rank);
  if (whole.num_streams > 1) part.weights += hidden * whole.num_streams;
  if (layer.gate_deviations) part.weights += hidden * (layer.inner_size - inner);
  if (shard.is_whole()) return part;
  part.num_exchanges = 2;
  const AttentionHeads heads = shared_heads_of(layer);
  const std::vector<SliceRun> mixer_runs = heads.num_heads > 0
                                               ? shard.attention(heads).runs
                                               : shard.inner_runs(layer.state.conv_channels);
  part.received_floats =
      hidden * (num_received(mixer_runs) + num_received(shard.inner_runs(layer.inner_size)));
  if (shared_inner > 0) {
    ++part.num_exchanges;
    part.received_floats += hidden * num_received(shard.inner_runs(shared_inner));
  }
  if (layer.mixer == Mixer::kMamba2 && shard.shares_norms(heads, whole.mixer_norm_groups)) {
    ++part.num_exchanges;
    part.received_floats +=
        from_others(static_cast<double>(layer.state.value_size()), shard.size());
  }
  if (whole.qk_norm == QkNorm::kAllHeads && !layer.is_recurrent()) {
    ++part.num_exchanges;
    part.received_floats += from_others(
        static_cast<double>(layer.heads.q_size() + layer.heads.kv_size()), shard.size());
  }
  return part;
}

ModelFacts facts_of_share(const ModelConfig& whole, const FactsFormats& formats, int size) {
  const ModelShard shard(whole, size);
  ModelFacts facts{.architecture = whole.architecture,
                   .dtype = std::string(name_of(whole.checkpoint_dtype)),
                   .max_position_embeddings = whole.max_position_embeddings,
                   .num_ranks = size,
                   .hidden_size = whole.hidden_size,
                   .num_experts = whole.num_experts,
                   .num_experts_per_token = whole.num_experts_per_token};
  set_formats(whole, formats, facts);
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    facts.layers.push_back(facts_of_layer(whole, i, shard, formats));
  }
  const double width = whole.embed_dim != 0 ? whole.embed_dim : whole.hidden_size;
  const double projection = static_cast<double>(whole.embed_dim) * whole.hidden_size;
  const int tokens = (whole.vocab_size + size - 1) / size;
  const double per_layer_width = static_cast<double>(whole.num_layers) * whole.per_layer_dim;
  const double maps = 2.0 * (whole.num_streams - 1) * whole.hidden_size;  // of residual streams
  facts.input.weights = projection + (per_layer_width + maps) * whole.hidden_size;
  facts.output.weights = tokens * width + projection;
  facts.table_weights = whole.per_layer_vocab * per_layer_width;
  if (!whole.tie_word_embeddings) facts.table_weights += whole.vocab_size * width;
  if (size == 1) return facts;
  facts.output.num_exchanges = 1;
  facts.output.received_floats = from_others(whole.vocab_size, size);
  if (whole.tie_word_embeddings) {
    facts.input.num_exchanges = 1;
    facts.input.received_floats = from_others(width, size);
  }
  return facts;
}

std::vector<ModelFacts> facts_of(const ModelConfig& config, const FactsFormats& formats) {
  std::vector<ModelFacts> facts;
  for (const int size : tensor_parallel_sizes(config)) {
    facts.push_back(facts_of_share(config, formats, size));
  }
  return facts;
}

template <class Value>
auto sum_of_parts(const ModelFacts& facts, const Value& value) {
  auto sum = value(facts.input) + value(facts.output);
  for (const PartFacts& layer : facts.layers) sum += value(layer);
  return sum;
}

double attended(const PartFacts& layer, double context) {
  return layer.sliding_window > 0 ? std::min<double>(layer.sliding_window, context) : context;
}

double held_bytes(const ModelFacts& facts, double num_experts) {
  double weights = facts.input.weights;
  for (const PartFacts& layer : facts.layers) {
    weights += layer.weights + num_experts * layer.expert_weights;
  }
  return weights * facts.layer_bytes + facts.output.weights * facts.output_bytes;
}

}  // namespace

ModelFacts ModelFacts::stage(int index, int num_stages) const {
  const RankCoordinates coordinates = {.stage = index, .num_stages = num_stages};
  ModelFacts part = *this;
  part.layers.assign(layers.begin() + coordinates.first_layer(num_layers()),
                     layers.begin() + coordinates.end_layer(num_layers()));
  if (coordinates.is_first() && !coordinates.is_last() && table_weights == 0) {
    part.table_weights = output.weights;  // tied, and the output head is on another stage
  }
  if (!coordinates.is_first()) {
    part.input = {};
    part.table_weights = 0;
  }
  if (!coordinates.is_last()) part.output = {};
  return part;
}

double ModelFacts::pass_bytes(double num_rows, double batch, double context) const {
  double chosen = 0;
  if (num_experts > 0) {
    const double spared = 1.0 - static_cast<double>(num_experts_per_token) / num_experts;
    chosen = num_experts * (1.0 - std::pow(spared, num_rows));
  }
  double kv = 0;
  for (const PartFacts& layer : layers) {
    kv += (batch * attended(layer, context) + (layer.owns_kv ? num_rows : 0.0)) * layer.kv_bytes;
    kv += 2.0 * batch * layer.state_bytes;
  }
  return held_bytes(*this, chosen) + kv;
}

double ModelFacts::pass_flops(double num_rows, double context,
                              std::optional<double> num_scored) const {
  double row = 2.0 * input.weights;
  for (const PartFacts& layer : layers) {
    row += 2.0 * (layer.weights + num_experts_per_token * layer.expert_weights) +
           4.0 * layer.query_elements * attended(layer, context) + layer.state_flops;
  }
  return num_rows * row + 2.0 * num_scored.value_or(num_rows) * output.weights;
}

int ModelFacts::num_exchanges() const {
  return sum_of_parts(*this, [](const PartFacts& part) { return part.num_exchanges; });
}

double ModelFacts::received_bytes(double num_rows) const {
  return num_rows * kFloatBytes *
         sum_of_parts(*this, [](const PartFacts& part) { return part.received_floats; });
}

double ModelFacts::memory_bytes(double num_tokens) const {
  double kv = 0;
  for (const PartFacts& layer : layers) kv += layer.owns_kv ? layer.kv_bytes : 0.0;
  return held_bytes(*this, num_experts) + table_weights * output_bytes + num_tokens * kv;
}

std::vector<ModelFacts> facts_of(const DraftHeadConfig& head, const ModelConfig& target,
                                 const FactsFormats& formats) {
  if (head.model.layers.empty()) {  // ranks do not share it
    ModelFacts facts;
    set_formats(head.model, formats, facts);
    facts.input.weights = head.block_weights;
    facts.output.weights = head.output_weights;
    return {facts};
  }
  ModelConfig model = head.model;
  model.tie_word_embeddings = target.tie_word_embeddings && !head.eagle.has_embedding;
  std::vector<ModelFacts> all = facts_of(model, formats);
  const double features = static_cast<double>(head.taps.num_taps()) * target.hidden_size;
  double fused = features + (head.eagle.fuses_embedding ? model.hidden_size : 0);
  if (model.reads_target_kv) fused = 3.0 * target.hidden_size;  // embedding and state, and back
  for (ModelFacts& facts : all) {
    facts.input.weights = fused * model.hidden_size;
    if (head.num_clusters > 0) {
      facts.output.weights *= static_cast<double>(head.num_kept_clusters) / head.num_clusters;
      facts.output.weights += static_cast<double>(head.num_clusters) * model.hidden_size;
    }
    facts.output.weights += static_cast<double>(head.eagle.markov_rank) * model.vocab_size;
    if (!model.tie_word_embeddings) {
      facts.table_weights = static_cast<double>(target.vocab_size) * model.hidden_size;
    }
  }
  return all;
}

std::vector<ModelFacts> model_facts(const std::string& directory, const FactsFormats& formats) {
  return facts_of(load_model_config(directory), formats);
}

std::vector<ModelFacts> head_facts(const DrafterConfig& head, const std::string& target_directory,
                                   const FactsFormats& formats) {
  ModelConfig target = load_model_config(target_directory);
  target.random_weights = true;  // tensors are not looked up
  FactsFormats own = formats;
  own.quantization = head.quantization;
  return facts_of(load_draft_head_config(
                      head, DraftHeadTarget{.config = target, .directory = target_directory}),
                  target, own);
}

bool scores_with_target(const DrafterConfig& head, const std::string& target_directory,
                        bool random_weights) {
  ModelConfig target = load_model_config(target_directory);
  target.random_weights = random_weights;
  const DraftHeadConfig config = load_draft_head_config(
      head, DraftHeadTarget{.config = target, .directory = target_directory});
  // Medusa's heads and MLP speculators have no layers, heads on the target's KV (Gemma 4's
  // assistants) have an output matrix, and with token ids a head has its own choice.
  return !config.model.layers.empty() && !config.model.reads_target_kv &&
         !config.eagle.has_lm_head && config.token_ids.empty();
}

}  // namespace specdec
