#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "model/load_experts.h"
#include "model/load_mixer.h"
#include "model/parts.h"
#include "model/rope.h"
#include "model/tensor_loader.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::string weight_of(std::string_view name) { return str_cat(name, ".weight"); }

int64_t embed_dim(const ModelConfig& config) {
  return config.embed_dim != 0 ? config.embed_dim : config.hidden_size;
}

// Checked first, before loading the existing layers takes time and memory.
void check_num_layers(const TensorLoader& loader) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const std::string last = str_cat(
      names.layers, config.num_layers - 1, ".",
      names.attention_norm.empty() ? names.attention_output_norm : names.attention_norm, ".weight");
  if (config.random_weights || loader.contains(last)) return;
  throw CheckpointError(loader.source(), last,
                        str_cat("the checkpoint has no such tensor, and num_hidden_layers of "
                                "config.json is ",
                                config.num_layers));
}

// Name of the tensor with the token embeddings.
std::string table_name(const TensorLoader& loader) {
  const ModelConfig& config = loader.config();
  const std::string name = weight_of(config.names.embedding);
  return config.tie_word_embeddings && !loader.contains(name) ? weight_of(config.names.lm_head)
                                                              : name;
}

// Loads the token embeddings and the LM head's matrix, which are one tensor where they are tied. A
// checkpoint may say "tied" and still hold an LM head; then the LM head is used, as in transformers
// 5.
void load_vocabulary(TensorLoader& loader, Embedding& embedding, LmHead& lm_head) {
  const ModelConfig& config = loader.config();
  const std::string lm_head_name = weight_of(config.names.lm_head);
  const std::string name = table_name(loader);
  const bool has_lm_head = name != lm_head_name && loader.contains(lm_head_name);
  if (!has_lm_head && !config.tie_word_embeddings) {
    throw CheckpointError(loader.source(), lm_head_name,
                          "the checkpoint has no such tensor, and tie_word_embeddings of "
                          "config.json is false; where the embedding table serves as the head, "
                          "give hf_overrides={\"tie_word_embeddings\": true}");
  }
  const auto read_table = [&] {
    return loader.read_matrix(name, config.vocab_size, embed_dim(config));
  };
  if (!has_lm_head || (config.tie_word_embeddings && loader.is_equal(lm_head_name, read_table()))) {
    lm_head.weight =
        loader.matrix(MatrixRole::kVocabulary, {{name, config.vocab_size}}, embed_dim(config));
    embedding.lm_head = lm_head.weight;
    embedding.tokens = loader.table_of(*lm_head.weight);
  } else {
    if (config.tie_word_embeddings) {
      log_warning(loader.source(), ": tie_word_embeddings is set, but ", lm_head_name,
                  " differs from the embedding table; both are used");
    }
    const WeightView table = read_table();
    embedding.tokens =
        loader.table(loader.format_of(MatrixRole::kVocabulary, std::array{table}), table);
    lm_head.weight = loader.matrix(MatrixRole::kVocabulary, {{lm_head_name, config.vocab_size}},
                                   embed_dim(config));
  }
  loader.release(name);
}

void load_positions(TensorLoader& loader, Embedding& embedding) {
  const ModelConfig& config = loader.config();
  if (!config.learned_positions) return;
  const std::string name = weight_of(config.names.positions);
  const int64_t rows = int64_t{config.max_position_embeddings} + config.learned_position_offset;
  embedding.positions =
      loader.table(WeightFormat::kAct, loader.read_matrix(name, rows, config.hidden_size));
  embedding.position_offset = config.learned_position_offset;
  loader.release(name);
}

// Loads the LM head's matrix alone, chosen as in load_vocabulary.
void load_lm_head(TensorLoader& loader, LmHead& lm_head) {
  const ModelConfig& config = loader.config();
  std::string name = weight_of(config.names.lm_head);
  if (!loader.contains(name)) name = table_name(loader);
  lm_head.weight =
      loader.matrix(MatrixRole::kVocabulary, {{name, config.vocab_size}}, embed_dim(config));
}

void load_table_alone(TensorLoader& loader, Embedding& embedding) {
  const ModelConfig& config = loader.config();
  const std::string name = table_name(loader);
  const WeightView table = loader.read_matrix(name, config.vocab_size, embed_dim(config));
  embedding.tokens =
      loader.table(loader.format_of(MatrixRole::kVocabulary, std::array{table}), table);
  loader.release(name);
}

// Loads the first stage's embedding and the last stage's LM head, unless they are given.
void load_missing_ends(TensorLoader& loader, ModelParts& parts) {
  const ModelConfig& config = loader.config();
  const bool needs_embedding =
      parts.embedding == nullptr && loader.shard().coordinates().is_first();
  const bool needs_lm_head = parts.lm_head == nullptr && loader.shard().coordinates().is_last();
  auto embedding = std::make_shared<Embedding>();
  auto lm_head = std::make_shared<LmHead>();
  if (needs_embedding && needs_lm_head) {
    load_vocabulary(loader, *embedding, *lm_head);
  } else if (needs_embedding) {
    load_table_alone(loader, *embedding);
  } else if (needs_lm_head) {
    load_lm_head(loader, *lm_head);
  }
  if (needs_embedding) {
    embedding->scale = config.rounds_embedding_scale ? loader.rounded(config.embedding_scale)
                                                     : config.embedding_scale;
    load_positions(loader, *embedding);
    if (config.embed_dim != 0) {
      embedding->project_in = loader.matrix(
          MatrixRole::kLayer, {{weight_of(config.names.project_in), config.hidden_size}},
          config.embed_dim);
    }
    parts.embedding = std::move(embedding);
  }
  if (needs_lm_head) {
    lm_head->scale = config.logits_scale;
    lm_head->soft_cap = config.logits_soft_cap;
    if (config.embed_dim != 0) {
      lm_head->project_out = loader.matrix(
          MatrixRole::kLayer, {{weight_of(config.names.project_out), config.embed_dim}},
          config.hidden_size);
    }
    parts.lm_head = std::move(lm_head);
  }
}

// Row order that turns rows stored head by head into all of q, then k, then v.
std::vector<RowRange> heads_apart(int head_dim, const HeadShare& share) {
  std::vector<RowRange> order;
  for (int part = 0; part < 3; ++part) {
    for (int head = 0; head < share.num_heads; ++head) {
      const int64_t row = int64_t{3} * (share.first_head + head) + part;
      order.push_back({row * head_dim, head_dim});
    }
  }
  return order;
}

// The rows of heads [first, first + count) in which neighbours turn together, in the order in which
// row i turns with row i + rotary_dim / 2. Scores of q and k do not depend on the order.
std::vector<RowRange> pairs_apart(int first, int count, int head_dim, int rotary_dim) {
  std::vector<RowRange> order;
  for (int head = first; head < first + count; ++head) {
    const int64_t begin = int64_t{head} * head_dim;
    for (int row = 0; row < rotary_dim; row += 2) order.push_back({begin + row, 1});
    for (int row = 1; row < rotary_dim; row += 2) order.push_back({begin + row, 1});
    if (rotary_dim < head_dim) order.push_back({begin + rotary_dim, head_dim - rotary_dim});
  }
  return order;
}

// Of a tensor with each head's rows of q (part 0) and of its output's gate (part 1) together: the
// rows of one part of this rank's heads.
TensorPart gated_query_part(const TensorLoader& loader, const std::string& prefix,
                            const AttentionHeads& heads, int64_t part) {
  const HeadShare& share = loader.shard().share_of(heads);
  TensorPart rows = {str_cat(prefix, loader.config().names.qkv[0]), 2 * heads.q_size()};
  if (loader.config().random_weights) {  // which need no order
    const int64_t first = part * heads.num_heads + share.first_head;
    rows.order = {{first * heads.head_dim, int64_t{share.num_heads} * heads.head_dim}};
    return rows;
  }
  for (int head = share.first_head; head < share.first_head + share.num_heads; ++head) {
    rows.order.push_back({(int64_t{2} * head + part) * heads.head_dim, heads.head_dim});
  }
  return rows;
}

// q, k and v of this rank's heads, as parts of the tensors that hold them.
std::vector<TensorPart> qkv_parts(const TensorLoader& loader, const std::string& prefix,
                                  const LayerSpec& layer) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const HeadShare& share = loader.shard().share_of(layer.heads);
  const int head_dim = layer.heads.head_dim;
  const auto rows = [&](int64_t head) { return head * head_dim; };
  const int64_t q_rows = layer.heads.q_size();
  const int64_t kv_rows = layer.heads.kv_size();
  const RowRange q = {rows(share.first_head), rows(share.num_heads)};
  const RowRange kv = {rows(share.first_kv_head), rows(share.num_kv_heads)};
  if (names.qkv[1].empty()) {
    TensorPart fused = {str_cat(prefix, names.qkv[0]), q_rows + 2 * kv_rows};
    if (names.qkv_by_head) {
      fused.order = heads_apart(head_dim, share);
    } else if (!loader.shard().is_whole()) {
      fused.order = {q, {q_rows + kv.begin, kv.count}, {q_rows + kv_rows + kv.begin, kv.count}};
    }
    return {fused};
  }
  std::vector<TensorPart> parts = {config.attention_gate
                                       ? gated_query_part(loader, prefix, layer.heads, 0)
                                       : TensorPart{str_cat(prefix, names.qkv[0]), q_rows, {q}}};
  if (layer.kv_source >= 0) return parts;
  parts.push_back({str_cat(prefix, names.qkv[1]), kv_rows, {kv}});
  parts.push_back({str_cat(prefix, names.qkv[layer.values_are_keys ? 1 : 2]), kv_rows, {kv}});
  // Random rows need no order, and a backend may make them up itself.
  if (config.rope_in_pairs && layer.rope >= 0 && !config.random_weights) {
    const int rotary = rotary_dim(config.ropes[layer.rope], head_dim);
    parts[0].order = pairs_apart(share.first_head, share.num_heads, head_dim, rotary);
    parts[1].order = pairs_apart(share.first_kv_head, share.num_kv_heads, head_dim, rotary);
  }
  return parts;
}

void load_attention(TensorLoader& loader, const std::string& prefix, Layer& layer) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const AttentionHeads& heads = layer.spec.heads;
  const bool owns_kv = layer.spec.kv_source < 0;
  const AttentionInput input = layer.spec.attention_input;
  const int64_t in_features =
      int64_t{config.hidden_size} * (input == AttentionInput::kWithEmbedding ? 2 : 1);
  if (input == AttentionInput::kWithEmbedding) {
    layer.embedding_norm = loader.norm(str_cat(prefix, names.attention_norm));
    layer.attention_norm = loader.norm(str_cat(prefix, names.feature_norm));
  } else if (input == AttentionInput::kNormed && !names.attention_norm.empty()) {
    layer.attention_norm = loader.norm(str_cat(prefix, names.attention_norm));
  }
  layer.qkv = loader.linear(qkv_parts(loader, prefix, layer.spec), in_features, config.qkv_bias);
  if (config.attention_gate) {
    TensorPart gates = gated_query_part(loader, prefix, heads, 1);
    gates.name = weight_of(gates.name);
    layer.attention_gate = loader.matrix(MatrixRole::kLayer, {gates}, in_features);
  }
  const HeadShare& share = loader.shard().share_of(heads);
  layer.heads = {share.num_heads, share.num_kv_heads, heads.head_dim};
  layer.all_heads = loader.shard().attention(heads).all_heads;
  if (config.has_sinks) {
    const RowRange own = {share.first_head, share.num_heads};
    layer.sinks = loader.vector({{str_cat(prefix, names.sinks), heads.num_heads, {own}}});
  }
  if (config.qk_norm != QkNorm::kNone) {
    SPECDEC_CHECK(!config.rope_in_pairs);  // their weights would need the order, too
    const auto load = [&](std::string_view norm, int64_t rows, int64_t first_head, int64_t count) {
      const std::string name = str_cat(prefix, norm, ".weight");
      if (config.qk_norm == QkNorm::kPerHead) return loader.norm_weights({name, heads.head_dim});
      const RowRange own = {first_head * heads.head_dim, count * heads.head_dim};
      if (own.count == rows) return loader.norm_weights({name, rows});
      return loader.norm_weights({name, rows, {own}});
    };
    layer.q_norm = load(names.q_norm, heads.q_size(), share.first_head, share.num_heads);
    if (owns_kv) {
      layer.k_norm = load(names.k_norm, heads.kv_size(), share.first_kv_head, share.num_kv_heads);
    }
  }
  if (config.v_norm && owns_kv) {
    layer.v_norm = loader.vector_of(std::vector<float>(heads.head_dim, 1.0f));
  }
  const SharedSums sums = loader.attention_sums(heads);
  layer.attention_out = loader.linear({{str_cat(prefix, names.attention_out), config.hidden_size}},
                                      heads.q_size(), config.out_bias, {.sums = &sums});
  if (layer.spec.norms_output()) {
    layer.attention_output_norm = loader.output_norm(str_cat(prefix, names.attention_output_norm));
  }
}

// An MLP whose gates are made sparse. A gate depends on all of its row, so every rank has all.
void load_sparse_mlp(TensorLoader& loader, const std::string& prefix, int inner, Layer& layer) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const SharedSums sums = loader.inner_sums(inner);
  const RowRange own = {sums.slices.begin(), sums.slices.in_features()};
  layer.sparse_begin = own.begin;
  layer.sparse_gate =
      loader.matrix(MatrixRole::kLayer, {{str_cat(prefix, weight_of(names.mlp_in[0])), inner}},
                    config.hidden_size);
  layer.mlp_in = loader.linear({{str_cat(prefix, names.mlp_in[1]), inner, {own}}},
                               config.hidden_size, config.mlp_bias);
  layer.mlp_out = loader.linear({{str_cat(prefix, names.mlp_out), config.hidden_size}}, inner,
                                config.mlp_bias, {.sums = &sums});
}

// An MLP of `inner` features in all; `in_names` as TensorNames::mlp_in.
void load_dense_mlp(TensorLoader& loader, const std::string& prefix, int inner,
                    const std::array<std::string_view, 2>& in_names, std::string_view out_name,
                    Layer& layer) {
  const ModelConfig& config = loader.config();
  const bool gated = layer.spec.mlp != MlpKind::kPlain;
  const SharedSums sums = loader.inner_sums(inner);
  const RowRange own = {sums.slices.begin(), sums.slices.in_features()};
  std::vector<TensorPart> in = {{str_cat(prefix, in_names[0]), inner, {own}}};
  if (gated && in_names[1].empty()) {
    in.front().rows = int64_t{2} * inner;
    in.front().order.push_back({inner + own.begin, own.count});
  } else if (gated) {
    in.push_back({str_cat(prefix, in_names[1]), inner, {own}});
  }
  layer.mlp_in = loader.linear(in, config.hidden_size, config.mlp_bias, {.gated = gated});
  layer.mlp_out = loader.linear({{str_cat(prefix, out_name), config.hidden_size}}, inner,
                                config.mlp_bias, {.sums = &sums});
}

// The constants of xIELU, of which alphas are stored before a softplus.
ActivationConstants load_xielu(TensorLoader& loader, const std::string& prefix) {
  const auto value = [&](const char* name) {
    return loader.scalar(str_cat(prefix, "mlp.act_fn.", name));
  };
  const auto softplus = [](float x) {
    return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
  };
  const float beta = value("beta");
  return {.positive = softplus(value("alpha_p")),
          .negative = beta + softplus(value("alpha_n")),
          .beta = beta,
          .eps = value("eps")};
}

void load_mlp(TensorLoader& loader, const std::string& prefix, Layer& layer) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const LayerSpec& spec = layer.spec;
  if (!names.mlp_norm.empty()) layer.mlp_norm = loader.norm(str_cat(prefix, names.mlp_norm));
  layer.activation_constants = config.activation == Activation::kXielu
                                   ? load_xielu(loader, prefix)
                                   : config.activation_constants;
  if (spec.mlp == MlpKind::kExperts) {
    layer.experts = load_experts(loader, prefix, spec);
    if (spec.shared_inner_size == 0) return;
    load_dense_mlp(loader, prefix, spec.shared_inner_size, names.shared_in, names.shared_out,
                   layer);
    if (spec.norms_output()) {
      layer.shared_output_norm = loader.norm(str_cat(prefix, names.shared_output_norm));
      layer.mlp_output_norm = loader.output_norm(str_cat(prefix, names.mlp_output_norm));
    }
    if (names.shared_gate.empty()) return;
    layer.shared_gate =
        loader.matrix(MatrixRole::kFloat, {{str_cat(prefix, names.shared_gate, ".weight"), 1}},
                      config.hidden_size);
    return;
  }
  if (spec.gate_deviations) {
    load_sparse_mlp(loader, prefix, spec.inner_size, layer);
  } else {
    load_dense_mlp(loader, prefix, spec.inner_size, names.mlp_in, names.mlp_out, layer);
  }
  if (spec.norms_output()) {
    layer.mlp_output_norm = loader.output_norm(str_cat(prefix, names.mlp_output_norm));
  }
}

void load_streams(TensorLoader& loader, const std::string& prefix, StreamMixing& mixing) {
  const ModelConfig& config = loader.config();
  const int64_t count = config.num_streams, hidden = config.hidden_size;
  if (count == 1) return;
  const std::string block = str_cat(prefix, config.names.streams);
  mixing.router_norm =
      loader.norm(str_cat(block, ".router_norm"), hidden, 1.0f / static_cast<float>(hidden));
  mixing.router = loader.matrix(MatrixRole::kFloat,
                                {{str_cat(block, ".modality_router.weight"), count}}, hidden);
  mixing.prediction = loader.vector_of(
      loader.read_floats(str_cat(block, ".prediction_coefs.weight"), {count * count, count}));
  mixing.correction = loader.vector_of(
      loader.read_floats(str_cat(block, ".correction_coefs.weight"), {count, count}));
}

void load_laurel(TensorLoader& loader, const std::string& prefix, Laurel& laurel) {
  const ModelConfig& config = loader.config();
  if (config.laurel_rank == 0) return;
  const std::string block = str_cat(prefix, config.names.laurel);
  laurel.left = loader.matrix(MatrixRole::kLayer,
                              {{str_cat(block, ".linear_left.weight"), config.laurel_rank}},
                              config.hidden_size);
  laurel.right = loader.matrix(MatrixRole::kLayer,
                               {{str_cat(block, ".linear_right.weight"), config.hidden_size}},
                               config.laurel_rank);
  laurel.norm = loader.norm(str_cat(block, ".post_laurel_norm"));
}

std::shared_ptr<const StreamEnds> load_stream_ends(TensorLoader& loader) {
  const ModelConfig& config = loader.config();
  auto ends = std::make_shared<StreamEnds>();
  const auto load = [&](std::string_view block, int index) {
    return loader.matrix(MatrixRole::kLayer,
                         {{str_cat(block, ".", index, ".weight"), config.hidden_size}},
                         config.hidden_size);
  };
  for (int i = 0; i + 1 < config.num_streams; ++i) {
    ends->projections.push_back(load(config.names.stream_projections, i));
    ends->unprojections.push_back(load(config.names.stream_unprojections, i));
  }
  return ends;
}

void load_per_layer_block(TensorLoader& loader, const std::string& prefix, PerLayerBlock& block) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  if (config.per_layer_dim == 0) return;
  const std::string gate = str_cat(prefix, weight_of(names.per_layer_gate));
  if (config.num_streams > 1 && config.scales_corrected) {
    // The factors of what the block reads.
    const std::vector<float> factors = loader.read_floats(
        str_cat(prefix, names.streams, ".correct_output_scale"), {config.hidden_size});
    block.gate = loader.with_factors(MatrixRole::kLayer, gate, config.per_layer_dim, factors);
  } else {
    block.gate =
        loader.matrix(MatrixRole::kLayer, {{gate, config.per_layer_dim}}, config.hidden_size);
  }
  block.out = loader.matrix(MatrixRole::kLayer,
                            {{str_cat(prefix, weight_of(names.per_layer_out)), config.hidden_size}},
                            config.per_layer_dim);
  block.output_norm = loader.norm(str_cat(prefix, names.per_layer_output_norm));
}

std::shared_ptr<const PerLayerEmbedding> load_per_layer_embedding(TensorLoader& loader) {
  const ModelConfig& config = loader.config();
  const TensorNames& names = config.names;
  const int64_t width = int64_t{config.num_layers} * config.per_layer_dim;
  constexpr float kMean = std::numbers::sqrt2_v<float> / 2;  // factor of the sum of the two parts
  auto embedding = std::make_shared<PerLayerEmbedding>();
  embedding->dim = config.per_layer_dim;
  const std::string table_name = weight_of(names.per_layer_embedding);
  const WeightView table = loader.read_matrix(table_name, config.per_layer_vocab, width);
  embedding->tokens =
      loader.table(loader.format_of(MatrixRole::kVocabulary, std::array{table}), table);
  loader.release(table_name);
  embedding->token_scale =
      kMean * loader.rounded(std::sqrt(static_cast<float>(config.per_layer_dim)));
  embedding->projection = loader.matrix(
      MatrixRole::kLayer, {{weight_of(names.per_layer_projection), width}}, config.hidden_size);
  embedding->projection_scale = 1.0f / std::sqrt(static_cast<float>(config.hidden_size));
  embedding->norm = loader.norm(std::string(names.per_layer_norm), config.per_layer_dim, kMean);
  return embedding;
}

}  // namespace

std::shared_ptr<const Layer> load_layer(TensorLoader& loader, const std::string& prefix,
                                        const LayerSpec& spec) {
  auto layer = std::make_shared<Layer>();
  layer->spec = spec;
  if (spec.is_recurrent()) {
    load_mixer(loader, prefix, *layer);
  } else {
    load_attention(loader, prefix, *layer);
  }
  load_mlp(loader, prefix, *layer);
  load_streams(loader, prefix, layer->mixing);
  load_laurel(loader, prefix, layer->laurel);
  load_per_layer_block(loader, prefix, layer->per_layer);
  const std::string_view stream_scale = loader.config().names.stream_scale;
  if (!stream_scale.empty()) layer->stream_scale = loader.scalar(str_cat(prefix, stream_scale));
  return layer;
}

LoadedParts load_parts(const ModelConfig& config, const std::string& directory,
                       Quantization quantization, Backend& backend, ModelParts given,
                       const RankCoordinates& coordinates) {
  if (quantization == Quantization::kFp8 && !backend.supports(WeightFormat::kFp8)) {
    throw InvalidArgument(
        "quantization", str_cat("'fp8' needs a GPU: ", backend.device_info().name,
                                " has no products with 8-bit floats; use 'int8' or leave it out"));
  }
  SPECDEC_CHECK_EQ(config.layers.size(), static_cast<size_t>(config.num_layers));
  TensorLoader loader(config, directory, quantization, backend, coordinates);
  LoadedParts loaded;
  loaded.parts = std::move(given);
  ModelParts& parts = loaded.parts;
  if (parts.layers.empty()) check_num_layers(loader);
  load_missing_ends(loader, parts);
  if (config.per_layer_dim > 0) parts.per_layer = load_per_layer_embedding(loader);
  if (config.num_streams > 1) parts.streams = load_stream_ends(loader);
  if (parts.layers.empty()) {
    for (int index = coordinates.first_layer(config.num_layers);
         index < coordinates.end_layer(config.num_layers); ++index) {
      parts.layers.push_back(
          load_layer(loader, str_cat(config.names.layers, index, "."), config.layers[index]));
    }
  }
  if (parts.final_norm == nullptr && config.final_norm && coordinates.is_last()) {
    parts.final_norm = std::make_shared<Norm>(loader.norm(std::string(config.names.final_norm)));
  }
  loader.finish(loaded);
  return loaded;
}

ModelParts load_ends(const ModelConfig& config, const std::string& directory,
                     Quantization quantization, Backend& backend,
                     const RankCoordinates& coordinates) {
  TensorLoader loader(config, directory, quantization, backend, coordinates);
  ModelParts parts;
  load_missing_ends(loader, parts);
  return parts;
}

}  // namespace specdec
