#include "model/decoder.h"

#include <algorithm>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/decoder_workspace.h"
#include "model/draft_head_fusion.h"
#include "model/model_shard.h"
#include "model/recurrent_mixers.h"
#include "model/residual_streams.h"
#include "model/stage_link.h"
#include "model/weight_format.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void check_sizes(const ModelConfig& config, int max_model_len, int max_rows) {
  SPECDEC_CHECK_GT(max_model_len, 0);
  SPECDEC_CHECK_GT(max_rows, 0);
  if (config.learned_positions && max_model_len > config.max_position_embeddings) {
    throw InvalidArgument("max_model_len", str_cat(max_model_len, " is more than the ",
                                                   config.max_position_embeddings,
                                                   " positions the checkpoint has embeddings for"));
  }
}

Buffer make_gates(const ModelParts& parts, Backend& backend, int max_rows) {
  int64_t width = 0;
  for (const auto& layer : parts.layers) {
    if (layer->sparse_gate) width = std::max(width, layer->sparse_gate->out_features());
  }
  if (width == 0) return {};
  const auto count = static_cast<size_t>(max_rows * width);
  return backend.allocate(count * sizeof(float), "decoder workspace");
}

Buffer make_cluster_scores(const ModelParts& parts, Backend& backend, int max_rows) {
  if (parts.lm_head == nullptr || parts.lm_head->clusters.centroids == nullptr) return {};
  const auto count = static_cast<size_t>(max_rows * parts.lm_head->clusters.num_clusters());
  return backend.allocate(count * sizeof(float), "decoder workspace");
}

int last_with_kv(const ModelConfig& config) {
  int last = config.num_layers - 1;
  const auto owns_kv = [](const LayerSpec& layer) {
    return !layer.is_recurrent() && layer.kv_source < 0;
  };
  while (last >= 0 && !owns_kv(config.layers[last])) --last;
  return last;
}

}  // namespace

struct Decoder::Impl {
  Impl(const ModelConfig& model_config, Backend& device, LoadedParts loaded_parts,
       int max_model_len, int row_limit, const RankCoordinates& coordinates)
      : Impl(model_config, ModelShard(model_config, coordinates), device, std::move(loaded_parts),
             max_model_len, row_limit) {}
  Impl(const ModelConfig& model_config, const ModelShard& shard, Backend& device,
       LoadedParts loaded_parts, int max_model_len, int row_limit)
      : config(shard.config_of_share(model_config)),
        backend(device),
        max_rows(row_limit),
        first_layer(shard.coordinates().first_layer(model_config.num_layers)),
        last_kv_layer(last_with_kv(config)),
        loaded(std::move(loaded_parts)),
        parts(loaded.parts),
        work(config, backend, row_limit),
        gates(make_gates(parts, backend, row_limit)),
        cluster_scores(make_cluster_scores(parts, backend, row_limit)),
        ropes(make_ropes(config, backend, max_model_len)),
        stages(shard.coordinates(), first_layer, config.hidden_size, backend) {
    if (parts.final_norm) final_norm_params = parts.final_norm->params();
    if (parts.streams) streams.emplace(config, *parts.streams, backend, row_limit);
    if (config.has_states()) recurrent.emplace(config, backend, row_limit);
    if (std::ranges::any_of(config.layers, &LayerSpec::in_order)) {
      const std::vector<std::byte> zeros(static_cast<size_t>(row_limit));
      no_trees = backend.allocate(zeros.size(), "decoder workspace");
      backend.write(zeros, no_trees.data());
    }
    if (parts.markov) {
      const auto count = static_cast<size_t>(row_limit) * static_cast<size_t>(parts.markov->rank);
      markov_rows = backend.allocate(count * sizeof(float), "decoder workspace");
    }
    if (parts.fusion) fusion.emplace(*parts.fusion, config.hidden_size, backend, row_limit);
  }

  void forward(const ModelPass& pass);
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits);
  bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens);
  void compute_markov_logits(const int32_t* token_ids, int num_rows, float* out);
  int64_t pass_bytes() const;

  void embed(const BatchView& batch, float* out);
  void run_layer(const Layer& layer, int index, const ModelPass& pass);
  void mix(const Layer& layer, int index, const ModelPass& pass);
  ProjectionInput attention_input(const Layer& layer, const NormParams& norm, int num_rows);
  void project_qkv(const Layer& layer, const BatchView& batch, const PagedKvView& kv,
                   const ProjectionInput& in);
  void write_context(const ModelPass& pass);
  void attend(const Layer& layer, const BatchView& batch, const PagedKvView& kv);
  BatchView in_order(const BatchView& batch) const;
  void gate_attention(const Layer& layer, int num_rows);
  void expand(const Layer& layer, const ProjectionInput& in);
  void expand(const Layer& layer, int num_rows);
  void run_experts(const Layer& layer, const ProjectionInput& router_in, Buffer& out,
                   bool accumulate, int num_rows);
  void add_experts(const Layer& layer, int num_rows);
  void add_normed_experts(const Layer& layer, int num_rows);
  void expand_sparse(const Layer& layer, const ProjectionInput& in);
  void add_laurel(const Layer& layer, int num_rows);
  void embed_per_layer(const BatchView& batch, const float* embedded);
  void add_per_layer(const Layer& layer, int index, int num_rows);
  void write_norm(const Norm& norm, const Buffer& x, Buffer& out, DType out_dtype, int num_rows);
  void add_norm(const Norm& norm, const Buffer& x, Buffer& out, float scale, int num_rows);
  void add_block(const Layer& layer, const Linear& out, const Buffer& rows, const Norm& norm,
                 const Norm& output_norm, int num_rows, float stream_scale = 1.0f);
  ProjectionInput block_input(const Layer& layer, const NormParams& norm, int num_rows) const;
  ProjectionInput act_input(const Buffer& rows, int num_rows) const;
  ProjectionInput lm_head_input(const int32_t* row_ids, int num_rows) const;
  // The factor of the residual stream that goes with the MLP's result: the layer's, unless a
  // per-layer block comes after the MLP.
  static float mlp_scale(const Layer& layer) {
    return layer.per_layer.gate ? 1.0f : layer.stream_scale;
  }
  const NormParams* final_norm() const { return parts.final_norm ? &final_norm_params : nullptr; }

  ModelConfig config;
  Backend& backend;
  int max_rows;
  int first_layer;    // index in the whole model's
  int last_kv_layer;  // the last one that has keys and values of its own
  LoadedParts loaded;
  const ModelParts& parts;
  DecoderWorkspace work;
  Buffer gates;             // [max_rows, whole inner] float32, of sparse gates
  Buffer no_trees;          // [max_rows] zeros, for layers in order
  Buffer markov_rows;       // [max_rows, rank] float32, of a Markov head
  Buffer cluster_scores;    // [max_rows, clusters] float32, of an LM head with clusters
  std::vector<Rope> ropes;  // as ModelConfig::ropes
  StageLink stages;
  std::optional<ResidualStreams> streams;
  std::optional<RecurrentMixers> recurrent;
  NormParams final_norm_params;
  std::optional<DraftHeadFusion> fusion;  // of a draft head
};

// ---- pieces

// The rows that a block reads: the residual stream, normalised first where the layer says so.
ProjectionInput Decoder::Impl::block_input(const Layer& layer, const NormParams& norm,
                                           int num_rows) const {
  return {.x = work.hidden.data(),
          .dtype = DType::kF32,
          .norm = layer.spec.norms_input() ? &norm : nullptr,
          .num_rows = num_rows};
}

ProjectionInput Decoder::Impl::act_input(const Buffer& rows, int num_rows) const {
  return {.x = rows.data(), .dtype = backend.act_dtype(), .num_rows = num_rows};
}

// out = norm(x), rows of the residual stream's width.
void Decoder::Impl::write_norm(const Norm& norm, const Buffer& x, Buffer& out, DType out_dtype,
                               int num_rows) {
  backend.norm({.norm = norm.params(),
                .x = x.as<float>(),
                .out = out.data(),
                .out_dtype = out_dtype,
                .num_rows = num_rows,
                .dim = config.hidden_size});
}

// out = scale * (out + norm(x)), likewise.
void Decoder::Impl::add_norm(const Norm& norm, const Buffer& x, Buffer& out, float scale,
                             int num_rows) {
  backend.norm({.norm = norm.params(),
                .x = x.as<float>(),
                .out = out.data(),
                .out_dtype = DType::kF32,
                .num_rows = num_rows,
                .dim = config.hidden_size,
                .accumulate = true,
                .scale = scale});
}

// Ends a block: projects `rows` and adds the result to the residual stream. Where the layer has
// one, a norm is applied to the result (`output_norm`) or to the whole stream afterwards (`norm`).
// Norms of results can be followed by a factor of the stream.
void Decoder::Impl::add_block(const Layer& layer, const Linear& out, const Buffer& rows,
                              const Norm& norm, const Norm& output_norm, int num_rows,
                              float stream_scale) {
  SPECDEC_CHECK(stream_scale == 1.0f || layer.spec.norms_output());
  const bool norms_output = layer.spec.norms_output();
  backend.linear({.weight = out.weight.get(),
                  .in = act_input(rows, num_rows),
                  .bias = out.bias.as<float>(),
                  .out = (norms_output ? work.hidden_spare : work.hidden).as<float>(),
                  .accumulate = !norms_output,
                  .scale = norms_output ? 1.0f : config.residual_scale});
  if (norms_output) {
    add_norm(output_norm, work.hidden_spare, work.hidden, stream_scale, num_rows);
  } else if (layer.spec.norms == NormPlacement::kResidual) {
    write_norm(norm, work.hidden, work.hidden_spare, DType::kF32, num_rows);
    std::swap(work.hidden, work.hidden_spare);
  }
}

// ---- forward

void Decoder::Impl::embed(const BatchView& batch, float* out) {
  const Embedding& embedding = *parts.embedding;
  const int rows = batch.num_rows;
  float* embedded = embedding.project_in ? work.embedded.as<float>() : out;
  backend.embed({.table = embedding.tokens.get(),
                 .token_ids = batch.token_ids,
                 .out = embedded,
                 .num_rows = rows,
                 .scale = embedding.scale});
  if (embedding.project_in) {
    backend.linear({.weight = embedding.project_in.get(),
                    .in = {.x = embedded, .dtype = DType::kF32, .num_rows = rows},
                    .out = out});
  }
  if (embedding.positions) {
    backend.embed({.table = embedding.positions.get(),
                   .token_ids = batch.positions,
                   .out = out,
                   .num_rows = rows,
                   .index_offset = embedding.position_offset,
                   .accumulate = true});
  }
}

// `norm`: the layer's, which must outlive the result.
ProjectionInput Decoder::Impl::attention_input(const Layer& layer, const NormParams& norm,
                                               int num_rows) {
  if (layer.spec.attention_input == AttentionInput::kWithEmbedding) {
    return fusion->join_embedding(layer, work.hidden.as<float>(), num_rows);
  }
  ProjectionInput in = block_input(layer, norm, num_rows);
  if (layer.spec.attention_input == AttentionInput::kRaw) in.norm = nullptr;
  return in;
}

// Writes the rows' keys and values to the cache, and their queries to work.q.
void Decoder::Impl::project_qkv(const Layer& layer, const BatchView& batch, const PagedKvView& kv,
                                const ProjectionInput& in) {
  const bool norms_all_heads = config.qk_norm == QkNorm::kAllHeads;
  QkvArgs qkv = {
      .weight = layer.qkv.weight.get(),
      .in = in,
      .bias = layer.qkv.bias.as<float>(),
      .q_norm = layer.q_norm.as<float>(),
      .k_norm = layer.k_norm.as<float>(),
      .v_norm = layer.v_norm.as<float>(),
      .norm_all_heads = norms_all_heads,
      .shared_heads = norms_all_heads && layer.all_heads.ranks ? &layer.all_heads : nullptr,
      .norm_after_rope = config.qk_norm_after_rope,
      .norm_eps = config.norm_eps,
      .num_heads = layer.heads.num_heads,
      .batch = &batch,
      .kv = kv,
      .q = work.q.data()};
  if (layer.spec.kv_source >= 0) qkv.kv = {.num_kv_heads = 0, .head_dim = kv.head_dim};
  if (layer.spec.rope >= 0) {
    const Rope& rope = ropes[layer.spec.rope];
    qkv.rope_cos = rope.cos.as<float>();
    qkv.rope_sin = rope.sin.as<float>();
    qkv.rotary_dim = rope.rotary_dim;
    qkv.query_scales = rope.query_scales.as<float>();
  }
  backend.project_qkv(qkv);
}

// The batch with chains in place of trees.
BatchView Decoder::Impl::in_order(const BatchView& batch) const {
  BatchView chains = batch;
  chains.is_tree = no_trees.as<uint8_t>();
  chains.ancestor_mask = nullptr;
  chains.num_tree_slots = nullptr;
  return chains;
}

// Runs a layer's attention, before its output projection, into work.mixed.
void Decoder::Impl::attend(const Layer& layer, const BatchView& batch, const PagedKvView& kv) {
  const NormParams norm = layer.attention_norm.params();
  project_qkv(layer, batch, kv, attention_input(layer, norm, batch.num_rows));
  const BatchView rows = layer.spec.in_order ? in_order(batch) : batch;
  backend.tree_attention({.q = work.q.data(),
                          .batch = &rows,
                          .kv = kv,
                          .num_heads = layer.heads.num_heads,
                          .scale = layer.spec.attention_scale,
                          .soft_cap = layer.spec.attention_soft_cap,
                          .sliding_window = layer.spec.sliding_window,
                          .sinks = layer.sinks.as<float>(),
                          .first_position = config.first_position,
                          .out = work.mixed.data()});
  if (layer.attention_gate) gate_attention(layer, batch.num_rows);
}

void Decoder::Impl::gate_attention(const Layer& layer, int num_rows) {
  const NormParams norm = layer.attention_norm.params();
  backend.linear({.weight = layer.attention_gate.get(),
                  .in = block_input(layer, norm, num_rows),
                  .out = work.attention_gates.as<float>()});
  backend.scale_rows({.rows = work.mixed.data(),
                      .factors = work.attention_gates.as<float>(),
                      .factors_are_gates = true,
                      .num_rows = num_rows,
                      .dim = static_cast<int>(layer.attention_gate->out_features())});
}

// Runs what mixes a layer's rows with those before them, before its output projection, into
// work.mixed.
void Decoder::Impl::mix(const Layer& layer, int index, const ModelPass& pass) {
  if (!layer.spec.is_recurrent()) return attend(layer, pass.batch, pass.kv_layers[index]);
  const NormParams norm = layer.attention_norm.params();
  recurrent->run(layer, block_input(layer, norm, pass.batch.num_rows), pass.batch,
                 pass.states[index], work.mixed.data());
}

// The first half of an MLP with sparse gates, into work.inner.
void Decoder::Impl::expand_sparse(const Layer& layer, const ProjectionInput& in) {
  const int64_t num_gates = layer.sparse_gate->out_features();  // of all ranks
  backend.linear({.weight = layer.sparse_gate.get(), .in = in, .out = gates.as<float>()});
  backend.sparse_gates({.gates = gates.as<float>(),
                        .deviations = *layer.spec.gate_deviations,
                        .activation = config.activation,
                        .num_rows = in.num_rows,
                        .dim = static_cast<int>(num_gates)});
  backend.activated_linear({.weight = layer.mlp_in.weight.get(),
                            .in = in,
                            .activation = Activation::kIdentity,
                            .gated = false,
                            .out = work.inner.data()});
  backend.scale_rows({.rows = work.inner.data(),
                      .factors = gates.as<float>() + layer.sparse_begin,
                      .factor_stride = num_gates,
                      .num_rows = in.num_rows,
                      .dim = static_cast<int>(layer.mlp_in.weight->out_features())});
}

// The first half of a dense MLP, into work.inner.
void Decoder::Impl::expand(const Layer& layer, const ProjectionInput& in) {
  if (layer.sparse_gate) return expand_sparse(layer, in);
  backend.activated_linear({.weight = layer.mlp_in.weight.get(),
                            .in = in,
                            .bias = layer.mlp_in.bias.as<float>(),
                            .activation = config.activation,
                            .constants = layer.activation_constants,
                            .gated = layer.spec.mlp != MlpKind::kPlain,
                            .out = work.inner.data()});
}
void Decoder::Impl::expand(const Layer& layer, int num_rows) {
  const NormParams norm = layer.mlp_norm.params();
  expand(layer, block_input(layer, norm, num_rows));
}

// Runs the experts on work.normed. The router may read other rows.
void Decoder::Impl::run_experts(const Layer& layer, const ProjectionInput& router_in, Buffer& out,
                                bool accumulate, int num_rows) {
  const Experts& experts = layer.experts;
  backend.linear({.weight = experts.router.weight.get(),
                  .in = router_in,
                  .bias = experts.router.bias.as<float>(),
                  .out = work.router.as<float>()});
  backend.moe({.router_logits = work.router.as<float>(),
               .router = {.scores = config.router_scores,
                          .selection_bias = experts.selection_bias.as<float>(),
                          .num_groups = config.num_expert_groups,
                          .top_groups = config.top_expert_groups,
                          .top_k = config.num_experts_per_token,
                          .renormalize = config.renormalize_experts,
                          .scale = config.expert_scale * config.residual_scale,
                          .expert_scales = experts.scales.as<float>()},
               .x = work.normed.data(),
               .gate_up = experts.gate_up,
               .down = experts.down,
               .gate_up_bias = experts.gate_up_bias.as<float>(),
               .down_bias = experts.down_bias.as<float>(),
               .activation = config.activation,
               .constants = layer.activation_constants,
               .out = out.as<float>(),
               .accumulate = accumulate,
               .num_rows = num_rows});
}

// Adds the experts, and an MLP beside them, which read the same normalised stream.
void Decoder::Impl::add_experts(const Layer& layer, int num_rows) {
  SPECDEC_CHECK(layer.spec.norms == NormPlacement::kInput &&
                !layer.spec.is_parallel);  // no family needs more
  write_norm(layer.mlp_norm, work.hidden, work.normed, backend.act_dtype(), num_rows);
  const ProjectionInput normed = act_input(work.normed, num_rows);
  run_experts(layer, normed, work.hidden, /*accumulate=*/true, num_rows);
  if (layer.spec.shared_inner_size == 0) return;
  expand(layer, normed);
  if (layer.shared_gate) {
    float* const gates = work.router.as<float>();
    backend.linear({.weight = layer.shared_gate.get(), .in = normed, .out = gates});
    backend.scale_rows({.rows = work.inner.data(),
                        .gates = gates,
                        .num_rows = num_rows,
                        .dim = static_cast<int>(layer.mlp_out.weight->in_features())});
  }
  add_block(layer, layer.mlp_out, work.inner, layer.mlp_norm, layer.mlp_output_norm, num_rows);
}

// Adds the experts and an MLP beside them as Gemma 4 does: the router, the experts and the MLP each
// normalise the stream for themselves; the experts' result, the MLP's result and the sum of the two
// are normalised, too.
void Decoder::Impl::add_normed_experts(const Layer& layer, int num_rows) {
  SPECDEC_CHECK(layer.spec.norms == NormPlacement::kInputAndOutput &&
                layer.spec.shared_inner_size > 0);
  const Experts& experts = layer.experts;
  write_norm(experts.input_norm, work.hidden, work.normed, backend.act_dtype(), num_rows);
  const NormParams router_norm = experts.router_norm.params();
  run_experts(layer, block_input(layer, router_norm, num_rows), work.hidden_spare,
              /*accumulate=*/false, num_rows);
  write_norm(experts.output_norm, work.hidden_spare, work.block_sum, DType::kF32, num_rows);
  expand(layer, num_rows);
  backend.linear({.weight = layer.mlp_out.weight.get(),
                  .in = act_input(work.inner, num_rows),
                  .bias = layer.mlp_out.bias.as<float>(),
                  .out = work.hidden_spare.as<float>()});
  add_norm(layer.shared_output_norm, work.hidden_spare, work.block_sum, 1.0f, num_rows);
  add_norm(layer.mlp_output_norm, work.block_sum, work.hidden, mlp_scale(layer), num_rows);
}

// Computes the values that the layers read beside the residual stream, into work.per_layer.
void Decoder::Impl::embed_per_layer(const BatchView& batch, const float* embedded) {
  const PerLayerEmbedding& embedding = *parts.per_layer;
  const int rows = batch.num_rows;
  backend.linear({.weight = embedding.projection.get(),
                  .in = {.x = embedded, .dtype = DType::kF32, .num_rows = rows},
                  .out = work.per_layer.as<float>(),
                  .scale = embedding.projection_scale});
  backend.norm({.norm = embedding.norm.params(),
                .x = work.per_layer.as<float>(),
                .out = work.per_layer.data(),
                .out_dtype = DType::kF32,
                .num_rows = rows * config.num_layers,
                .dim = embedding.dim});
  backend.embed({.table = embedding.tokens.get(),
                 .token_ids = batch.token_ids,
                 .out = work.per_layer.as<float>(),
                 .num_rows = rows,
                 .accumulate = true,
                 .scale = embedding.token_scale,
                 .unknown_is_first = true});
}

// Adds what the layer makes of its own values and the residual stream.
void Decoder::Impl::add_per_layer(const Layer& layer, int index, int num_rows) {
  const PerLayerBlock& block = layer.per_layer;
  const int dim = parts.per_layer->dim;
  const void* stream = work.hidden.data();
  if (streams) {
    streams->correct(layer, work.hidden.as<float>(), num_rows);
    stream = streams->active();
  }
  backend.activated_linear({.weight = block.gate.get(),
                            .in = {.x = stream, .dtype = DType::kF32, .num_rows = num_rows},
                            .activation = config.activation,
                            .gated = false,
                            .out = work.per_layer_inner.data()});
  backend.scale_rows({.rows = work.per_layer_inner.data(),
                      .factors = work.per_layer.as<float>() + int64_t{index} * dim,
                      .factor_stride = int64_t{config.num_layers} * dim,
                      .num_rows = num_rows,
                      .dim = dim});
  backend.linear({.weight = block.out.get(),
                  .in = act_input(work.per_layer_inner, num_rows),
                  .out = work.hidden_spare.as<float>()});
  if (streams) {
    streams->add_to_others(block.output_norm, work.hidden_spare.as<float>(), num_rows);
  } else {
    add_norm(block.output_norm, work.hidden_spare, work.hidden, layer.stream_scale, num_rows);
  }
}

// LAuReL (Menghani et al., 2024): adds the layer's normalised input, and the norm of a low-rank map
// of that input.
void Decoder::Impl::add_laurel(const Layer& layer, int num_rows) {
  const NormParams norm = layer.attention_norm.params();
  backend.linear({.weight = layer.laurel.left.get(),
                  .in = block_input(layer, norm, num_rows),
                  .out = work.laurel.as<float>()});
  backend.linear({.weight = layer.laurel.right.get(),
                  .in = {.x = work.laurel.data(), .dtype = DType::kF32, .num_rows = num_rows},
                  .out = work.hidden_spare.as<float>()});
  add_norm(layer.attention_norm, work.hidden, work.hidden, 1.0f, num_rows);
  add_norm(layer.laurel.norm, work.hidden_spare, work.hidden, 1.0f, num_rows);
}

void Decoder::Impl::run_layer(const Layer& layer, int index, const ModelPass& pass) {
  const int rows = pass.batch.num_rows;
  mix(layer, index, pass);
  if (layer.spec.is_parallel) expand(layer, rows);
  float attention_scale = 1.0f;  // of the stream and what attention and LAuReL add
  if (layer.laurel.left) {
    add_laurel(layer, rows);
    attention_scale = std::numbers::sqrt2_v<float> / 2;
  }
  add_block(layer, layer.attention_out, work.mixed, layer.attention_norm,
            layer.attention_output_norm, rows, attention_scale);
  if (layer.spec.mlp == MlpKind::kExperts && layer.spec.norms_output()) {
    add_normed_experts(layer, rows);
  } else if (layer.spec.mlp == MlpKind::kExperts) {
    add_experts(layer, rows);
  } else {
    if (!layer.spec.is_parallel) expand(layer, rows);
    add_block(layer, layer.mlp_out, work.inner, layer.mlp_norm, layer.mlp_output_norm, rows,
              mlp_scale(layer));
  }
  if (layer.per_layer.gate) add_per_layer(layer, index, rows);
}

// Makes the keys and values of committed tokens of the target's features, in every layer of the
// same: no layer's output is wanted.
void Decoder::Impl::write_context(const ModelPass& pass) {
  fusion->fuse(pass, work.hidden.as<float>());
  const NormParams norm = parts.fusion->context_norm.params();
  for (size_t index = 0; index < parts.layers.size(); ++index) {
    project_qkv(*parts.layers[index], pass.batch, pass.kv_layers[index],
                {.x = work.hidden.data(),
                 .dtype = DType::kF32,
                 .norm = &norm,
                 .num_rows = pass.batch.num_rows});
  }
}

void Decoder::Impl::forward(const ModelPass& pass) {
  const BatchView& batch = pass.batch;
  SPECDEC_CHECK_LE(batch.num_rows, max_rows);
  SPECDEC_CHECK_EQ(pass.kv_layers.size(), parts.layers.size());
  SPECDEC_CHECK(!config.has_states() || pass.states.size() == parts.layers.size());
  if (batch.num_rows == 0) return;
  if (!stages.is_first()) {
    stages.receive(pass, work.hidden.as<float>());
  } else if (parts.fusion != nullptr && parts.fusion->makes_context()) {
    if (pass.level == 0) return write_context(pass);
    embed(batch, work.hidden.as<float>());
  } else if (fusion) {
    embed(batch, fusion->token_rows());
    fusion->fuse(pass, work.hidden.as<float>());
  } else {
    float* const embedded = streams ? streams->first() : work.hidden.as<float>();
    embed(batch, embedded);
    if (parts.per_layer) embed_per_layer(batch, embedded);
    if (streams) streams->begin(batch.num_rows);
  }
  const int num_layers = static_cast<int>(parts.layers.size());
  for (int index = 0; index < num_layers; ++index) {
    const Layer& layer = *parts.layers[index];
    stages.tap_layer_input(pass, first_layer + index,
                           streams ? streams->active() : work.hidden.as<float>());
    if (streams) streams->predict(layer, work.hidden.as<float>(), batch.num_rows);
    if (pass.kv_only && index == last_kv_layer) {
      const NormParams norm = layer.attention_norm.params();
      return project_qkv(layer, batch, pass.kv_layers[index],
                         attention_input(layer, norm, batch.num_rows));
    }
    run_layer(layer, index, pass);
  }
  if (streams) {
    streams->end(work.hidden.as<float>(), work.hidden_spare.as<float>(), batch.num_rows);
  }
  if (!stages.is_last()) return stages.send(pass, work.hidden.as<float>());
  stages.tap_layer_input(pass, first_layer + num_layers, work.hidden.as<float>());
  store_final_hidden(pass.taps, pass.batch, work.hidden.as<float>(), final_norm(),
                     config.hidden_size, backend);
  if (fusion && !parts.fusion->makes_context()) {
    fusion->store_states(pass, work.hidden.as<float>(), final_norm());
  }
}

// The rows of the residual stream that the LM head reads.
ProjectionInput Decoder::Impl::lm_head_input(const int32_t* row_ids, int num_rows) const {
  return {.x = work.hidden.data(),
          .dtype = DType::kF32,
          .row_ids = row_ids,
          .norm = final_norm(),
          .num_rows = num_rows};
}

void Decoder::Impl::compute_logits(const int32_t* row_ids, int rows, float* logits) {
  SPECDEC_CHECK_LE(rows, max_rows);
  if (rows == 0 || parts.lm_head == nullptr) return;  // a stage before the last
  const LmHead& lm_head = *parts.lm_head;
  ProjectionInput in = lm_head_input(row_ids, rows);
  if (lm_head.project_out) {
    backend.linear(
        {.weight = lm_head.project_out.get(), .in = in, .out = work.embedded.as<float>()});
    in = {.x = work.embedded.data(), .dtype = DType::kF32, .num_rows = rows};
  }
  const LinearArgs linear = {.weight = lm_head.weight.get(),
                             .in = in,
                             .out = logits,
                             .scale = lm_head.scale,
                             .soft_cap = lm_head.soft_cap};
  const TokenClusters& clusters = lm_head.clusters;
  if (clusters.centroids == nullptr) return backend.linear(linear);
  backend.linear({.weight = clusters.centroids.get(), .in = in, .out = cluster_scores.as<float>()});
  backend.cluster_logits({.linear = linear,
                          .scores = cluster_scores.as<float>(),
                          .num_clusters = static_cast<int>(clusters.num_clusters()),
                          .num_kept = clusters.num_kept});
}

bool Decoder::Impl::best_tokens(const int32_t* row_ids, int rows, int32_t* tokens) {
  if (parts.lm_head == nullptr || parts.lm_head->project_out) return false;
  const LmHead& lm_head = *parts.lm_head;
  if (lm_head.clusters.centroids != nullptr) return false;
  return backend.best_tokens(
      {.linear = {.weight = lm_head.weight.get(),
                  .in = lm_head_input(row_ids, rows),
                  .scale = lm_head.scale,
                  .soft_cap = lm_head.soft_cap},
       .token_ids = lm_head.token_ids.empty() ? nullptr : lm_head.token_ids.as<int32_t>(),
       .tokens = tokens});
}

void Decoder::Impl::compute_markov_logits(const int32_t* token_ids, int rows, float* out) {
  SPECDEC_CHECK_LE(rows, max_rows);
  const MarkovHead& markov = *parts.markov;
  backend.embed({.table = markov.tokens.get(),
                 .token_ids = token_ids,
                 .out = markov_rows.as<float>(),
                 .num_rows = rows});
  backend.linear({.weight = markov.weight.get(),
                  .in = {.x = markov_rows.data(), .dtype = DType::kF32, .num_rows = rows},
                  .out = out});
}

// Table lookups read single rows, so tables do not count. Experts count in full, although a pass
// reads only some of them.
int64_t Decoder::Impl::pass_bytes() const {
  const auto size_of_matrix = [](const auto& matrix) {
    return matrix != nullptr ? matrix->size_bytes() : 0;
  };
  int64_t bytes = 0;
  if (parts.embedding != nullptr) bytes += size_of_matrix(parts.embedding->project_in);
  if (parts.lm_head != nullptr) {
    const TokenClusters& clusters = parts.lm_head->clusters;
    const int64_t of_all = size_of_matrix(parts.lm_head->weight);
    bytes += clusters.centroids ? of_all * clusters.num_kept / clusters.num_clusters() : of_all;
    bytes += size_of_matrix(clusters.centroids) + size_of_matrix(parts.lm_head->project_out);
  }
  if (parts.streams != nullptr) {
    for (const auto* maps : {&parts.streams->projections, &parts.streams->unprojections}) {
      for (const auto& matrix : *maps) bytes += size_of_matrix(matrix);
    }
  }
  if (parts.per_layer != nullptr) bytes += size_of_matrix(parts.per_layer->projection);
  if (parts.markov != nullptr) bytes += size_of_matrix(parts.markov->weight);
  if (parts.fusion != nullptr) {
    bytes += size_of_matrix(parts.fusion->embedding) + size_of_matrix(parts.fusion->feedback);
    for (const FeatureFusion::Part& part : parts.fusion->parts)
      bytes += size_of_matrix(part.weight);
  }
  for (const auto& layer : parts.layers) {
    for (const Linear* linear :
         {&layer->qkv, &layer->attention_out, &layer->mlp_in, &layer->mlp_out}) {
      bytes += size_of_matrix(linear->weight);
    }
    bytes += size_of_matrix(layer->attention_gate);
    bytes += size_of_matrix(layer->mixer.in) + size_of_matrix(layer->mixer.gates);
    bytes += size_of_matrix(layer->experts.router.weight) + size_of_matrix(layer->shared_gate);
    bytes += size_of_matrix(layer->per_layer.gate) + size_of_matrix(layer->per_layer.out);
    bytes += size_of_matrix(layer->laurel.left) + size_of_matrix(layer->laurel.right);
    bytes += size_of_matrix(layer->mixing.router) + size_of_matrix(layer->sparse_gate);
    for (const auto& expert : layer->experts.storage) bytes += size_of_matrix(expert);
  }
  return bytes;
}

// ---- public

Decoder::Decoder(const ModelConfig& config, const std::string& directory, Backend& backend,
                 int max_model_len, int max_rows, Quantization quantization, ModelParts given,
                 const RankCoordinates& coordinates) {
  check_sizes(config, max_model_len, max_rows);
  // Parts first: loading checks the sizes by which everything else is allocated.
  LoadedParts parts =
      load_parts(config, directory, quantization, backend, std::move(given), coordinates);
  *this = Decoder(config, std::move(parts), backend, max_model_len, max_rows, coordinates);
}
Decoder::Decoder(const ModelConfig& config, LoadedParts parts, Backend& backend, int max_model_len,
                 int max_rows, const RankCoordinates& coordinates) {
  check_sizes(config, max_model_len, max_rows);
  impl_ = std::make_unique<Impl>(config, backend, std::move(parts), max_model_len, max_rows,
                                 coordinates);
}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const { return impl_->config; }
const ModelParts& Decoder::parts() const { return impl_->parts; }
int64_t Decoder::num_parameters() const { return impl_->loaded.num_parameters; }
int64_t Decoder::weight_bytes() const { return impl_->loaded.size_bytes; }
int64_t Decoder::pass_bytes() const { return impl_->pass_bytes(); }

std::string Decoder::weight_format() const {
  const std::string kinds = describe_formats(impl_->loaded.formats, impl_->backend.act_dtype());
  const std::string& stored = impl_->config.stored_format;
  return stored.empty() || impl_->config.random_weights ? kinds : str_cat(kinds, ", from ", stored);
}

void Decoder::forward(const ModelPass& pass) { impl_->forward(pass); }

DraftVocabulary Decoder::draft_vocabulary() const {
  const LmHead* lm_head = impl_->parts.lm_head.get();
  if (lm_head == nullptr || lm_head->token_ids.empty()) return {};
  return {.token_ids = lm_head->token_ids.as<int32_t>(),
          .target_vocab_size = lm_head->target_vocab_size};
}

bool Decoder::has_markov_head() const { return impl_->parts.markov != nullptr; }

void Decoder::compute_markov_logits(const int32_t* token_ids, int num_rows, float* out) {
  impl_->compute_markov_logits(token_ids, num_rows, out);
}

std::span<const float> Decoder::mask_features() const {
  const FeatureFusion* fusion = impl_->parts.fusion.get();
  if (fusion == nullptr) return {};
  const Buffer& features = fusion->mask_features;
  return {features.as<float>(), features.size_bytes() / sizeof(float)};
}

void Decoder::compute_logits(const int32_t* row_ids, int num_rows, float* logits, int /*level*/) {
  impl_->compute_logits(row_ids, num_rows, logits);
}

bool Decoder::best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) {
  return impl_->best_tokens(row_ids, num_rows, tokens);
}

}  // namespace specdec
