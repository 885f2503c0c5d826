#include "model/decoder.h"

#include <array>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/decoder_weights.h"
#include "model/rope.h"
#include "model/weight_format.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Intermediate results of one step, allocated once for the largest. "act" is the backend's
// activation dtype.
struct Workspace {
  Workspace() = default;
  Workspace(const ModelConfig& config, Backend& backend, int max_rows);

  Buffer hidden;        // [max_rows, hidden] float32: the residual stream
  Buffer hidden_spare;  // likewise, for norms whose result becomes the residual stream
  Buffer embedded;      // [max_rows, embed_dim] float32, with embedding projections only
  Buffer q;             // [max_rows, num_heads * head_dim] act
  Buffer attention;     // [max_rows, num_heads * head_dim] act
  Buffer mlp;           // [max_rows, inner] act, without experts
  Buffer normed;        // [max_rows, hidden] act, with experts: what router and experts read
  Buffer router;        // [max_rows, num_experts] float32
};

Workspace::Workspace(const ModelConfig& config, Backend& backend, int max_rows) {
  const auto rows = [&](int64_t width, DType dtype) {
    const size_t bytes = static_cast<size_t>(max_rows) * static_cast<size_t>(width);
    return backend.allocate(bytes * size_of(dtype), "decoder workspace");
  };
  const DType act = backend.act_dtype();
  const int64_t hidden_size = config.hidden_size;
  const int64_t q_size = int64_t{config.num_heads} * config.head_dim;
  hidden = rows(hidden_size, DType::kF32);
  if (config.norm_after) hidden_spare = rows(hidden_size, DType::kF32);
  if (config.embed_dim != 0) embedded = rows(config.embed_dim, DType::kF32);
  q = rows(q_size, act);
  attention = rows(q_size, act);
  if (config.num_experts > 0) {
    router = rows(config.num_experts, DType::kF32);
    normed = rows(hidden_size, act);
  } else {
    mlp = rows(config.intermediate_size, act);
  }
}

Buffer make_table(Backend& backend, const std::vector<float>& values) {
  const TensorView view{
      .data = values.data(), .dtype = DType::kF32, .shape = {static_cast<int64_t>(values.size())}};
  return backend.make_vector(std::array{view});
}

}  // namespace

struct Decoder::Impl {
  Impl(const ModelConfig& model_config, const std::string& directory, Backend& device,
       int max_model_len, int row_limit, Quantization quantization);

  void forward(const BatchView& batch, std::span<const PagedKvView> kv_layers, const Taps& taps);
  void store_layer_input(int layer, const BatchView& batch, const Taps& taps);
  void store_final_hidden(const BatchView& batch, const Taps& taps);
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits);

  void embed(const BatchView& batch);
  void attention_block(const LayerWeights& layer, int index, const BatchView& batch,
                       const PagedKvView& kv);
  void mlp_block(const LayerWeights& layer, int num_rows);
  void dense_mlp(const LayerWeights& layer, int num_rows);
  void sparse_mlp(const LayerWeights& layer, int num_rows);
  NormParams params_of(const NormWeights& norm) const;
  ProjectionInput block_input(const NormParams& norm, int num_rows) const;
  ProjectionInput act_input(const Buffer& rows, int num_rows) const;
  void end_block(const NormWeights& norm, int num_rows);

  ModelConfig config;
  Backend& backend;
  int max_positions;
  int max_rows;
  DecoderWeights weights;  // first: they check the sizes that all else is allocated from
  Buffer rope_cos;         // [max_positions, rotary_dim / 2] float32, empty with learned positions
  Buffer rope_sin;
  int rotary_size = 0;
  float attention_scale;
  Workspace work;
};

Decoder::Impl::Impl(const ModelConfig& model_config, const std::string& directory, Backend& device,
                    int max_model_len, int row_limit, Quantization quantization)
    : config(model_config),
      backend(device),
      max_positions(max_model_len),
      max_rows(row_limit),
      attention_scale(config.attention_scale != 0.0f
                          ? config.attention_scale
                          : static_cast<float>(1.0 / std::sqrt(double(config.head_dim)))) {
  SPECDEC_CHECK_GT(max_model_len, 0);
  SPECDEC_CHECK_GT(row_limit, 0);
  if (config.learned_positions && max_model_len > config.max_position_embeddings) {
    throw InvalidArgument("max_model_len", str_cat(max_model_len, " is more than the ",
                                                   config.max_position_embeddings,
                                                   " positions the checkpoint has embeddings for"));
  }
  weights = load_decoder_weights(config, directory, quantization, backend);
  work = Workspace(config, backend, row_limit);
  if (config.rope.kind != RopeKind::kNone) {
    rotary_size = rotary_dim(config.rope, config.head_dim);
    const RopeTables tables = make_rope_tables(config.rope, config.head_dim, max_model_len);
    rope_cos = make_table(backend, tables.cos);
    rope_sin = make_table(backend, tables.sin);
  }
}

// ---- pieces

NormParams Decoder::Impl::params_of(const NormWeights& norm) const {
  return {.kind = config.norm_kind,
          .weight = norm.weight.as<float>(),
          .bias = norm.bias.as<float>(),
          .eps = config.norm_eps};
}

// A block reads the normalised residual stream; with norms after the blocks, the stream itself.
ProjectionInput Decoder::Impl::block_input(const NormParams& norm, int num_rows) const {
  return {.x = work.hidden.data(),
          .dtype = DType::kF32,
          .norm = config.norm_after ? nullptr : &norm,
          .num_rows = num_rows};
}

ProjectionInput Decoder::Impl::act_input(const Buffer& rows, int num_rows) const {
  return {.x = rows.data(), .dtype = backend.act_dtype(), .num_rows = num_rows};
}

void Decoder::Impl::end_block(const NormWeights& norm, int num_rows) {
  if (!config.norm_after) return;
  backend.norm({.norm = params_of(norm),
                .x = work.hidden.as<float>(),
                .out = work.hidden_spare.data(),
                .out_dtype = DType::kF32,
                .num_rows = num_rows,
                .dim = config.hidden_size});
  std::swap(work.hidden, work.hidden_spare);
}

// ---- forward

void Decoder::Impl::embed(const BatchView& batch) {
  float* hidden = work.hidden.as<float>();
  const int rows = batch.num_rows;
  float* embedded = config.embed_dim != 0 ? work.embedded.as<float>() : hidden;
  backend.embed({.table = weights.embedding.get(),
                 .token_ids = batch.token_ids,
                 .out = embedded,
                 .num_rows = rows});
  if (weights.project_in) {
    backend.linear({.weight = weights.project_in.get(),
                    .in = {.x = embedded, .dtype = DType::kF32, .num_rows = rows},
                    .out = hidden});
  }
  if (weights.positions) {
    backend.embed({.table = weights.positions.get(),
                   .token_ids = batch.positions,
                   .out = hidden,
                   .num_rows = rows,
                   .index_offset = config.learned_position_offset,
                   .accumulate = true});
  }
}

void Decoder::Impl::attention_block(const LayerWeights& layer, int index, const BatchView& batch,
                                    const PagedKvView& kv) {
  const int rows = batch.num_rows;
  const NormParams norm = params_of(layer.attention_norm);
  backend.project_qkv({.weight = layer.qkv.weight.get(),
                       .in = block_input(norm, rows),
                       .bias = layer.qkv.bias.as<float>(),
                       .q_norm = layer.q_norm.as<float>(),
                       .k_norm = layer.k_norm.as<float>(),
                       .norm_eps = config.norm_eps,
                       .rope_cos = rope_cos.as<float>(),
                       .rope_sin = rope_sin.as<float>(),
                       .rotary_dim = rotary_size,
                       .num_heads = config.num_heads,
                       .batch = &batch,
                       .kv = kv,
                       .q = work.q.data()});
  backend.tree_attention({.q = work.q.data(),
                          .batch = &batch,
                          .kv = kv,
                          .num_heads = config.num_heads,
                          .scale = attention_scale,
                          .sliding_window = config.sliding_window[index],
                          .out = work.attention.data()});
  backend.linear({.weight = layer.attention_out.weight.get(),
                  .in = act_input(work.attention, rows),
                  .bias = layer.attention_out.bias.as<float>(),
                  .out = work.hidden.as<float>(),
                  .accumulate = true});
  end_block(layer.attention_norm, rows);
}

void Decoder::Impl::dense_mlp(const LayerWeights& layer, int num_rows) {
  const NormParams norm = params_of(layer.mlp_norm);
  backend.activated_linear({.weight = layer.mlp_in.weight.get(),
                            .in = block_input(norm, num_rows),
                            .bias = layer.mlp_in.bias.as<float>(),
                            .activation = config.activation,
                            .gated = config.gated_mlp,
                            .out = work.mlp.data()});
  backend.linear({.weight = layer.mlp_out.weight.get(),
                  .in = act_input(work.mlp, num_rows),
                  .bias = layer.mlp_out.bias.as<float>(),
                  .out = work.hidden.as<float>(),
                  .accumulate = true});
}

void Decoder::Impl::sparse_mlp(const LayerWeights& layer, int num_rows) {
  SPECDEC_CHECK(!config.norm_after);
  backend.norm({.norm = params_of(layer.mlp_norm),
                .x = work.hidden.as<float>(),
                .out = work.normed.data(),
                .out_dtype = backend.act_dtype(),
                .num_rows = num_rows,
                .dim = config.hidden_size});
  backend.linear({.weight = layer.experts.router.get(),
                  .in = act_input(work.normed, num_rows),
                  .out = work.router.as<float>()});
  backend.moe({.router_logits = work.router.as<float>(),
               .x = work.normed.data(),
               .gate_up = layer.experts.gate_up,
               .down = layer.experts.down,
               .activation = config.activation,
               .top_k = config.num_experts_per_token,
               .renormalize = config.renormalize_experts,
               .out = work.hidden.as<float>(),
               .num_rows = num_rows});
}

void Decoder::Impl::mlp_block(const LayerWeights& layer, int num_rows) {
  if (config.num_experts > 0) {
    sparse_mlp(layer, num_rows);
  } else {
    dense_mlp(layer, num_rows);
  }
  end_block(layer.mlp_norm, num_rows);
}

// The residual stream, where a tap wants it: the number of layers stands for the last one's output.
void Decoder::Impl::store_layer_input(int layer, const BatchView& batch, const Taps& taps) {
  int column = 0;
  for (const int tapped : taps.spec.layer_inputs) {
    if (tapped == layer) {
      backend.store_rows({.x = work.hidden.as<float>(),
                          .slot_mapping = batch.slot_mapping,
                          .to = taps.features,
                          .column = column,
                          .dim = config.hidden_size,
                          .num_rows = batch.num_rows});
    }
    column += config.hidden_size;
  }
}

void Decoder::Impl::store_final_hidden(const BatchView& batch, const Taps& taps) {
  if (!taps.spec.final_hidden) return;
  const NormParams norm = params_of(weights.final_norm);
  backend.store_rows({.x = work.hidden.as<float>(),
                      .norm = config.final_norm ? &norm : nullptr,
                      .slot_mapping = batch.slot_mapping,
                      .to = taps.features,
                      .column = taps.features.width - config.hidden_size,
                      .dim = config.hidden_size,
                      .num_rows = batch.num_rows});
}

void Decoder::Impl::forward(const BatchView& batch, std::span<const PagedKvView> kv_layers,
                            const Taps& taps) {
  SPECDEC_CHECK_LE(batch.num_rows, max_rows);
  SPECDEC_CHECK_EQ(kv_layers.size(), weights.layers.size());
  if (batch.num_rows == 0) return;
  embed(batch);
  for (int index = 0; index < config.num_layers; ++index) {
    const LayerWeights& layer = weights.layers[index];
    store_layer_input(index, batch, taps);
    attention_block(layer, index, batch, kv_layers[index]);
    mlp_block(layer, batch.num_rows);
  }
  store_layer_input(config.num_layers, batch, taps);
  store_final_hidden(batch, taps);
}

void Decoder::Impl::compute_logits(const int32_t* row_ids, int rows, float* logits) {
  SPECDEC_CHECK_LE(rows, max_rows);
  if (rows == 0) return;
  const NormParams norm = params_of(weights.final_norm);
  ProjectionInput in = {.x = work.hidden.data(),
                        .dtype = DType::kF32,
                        .row_ids = row_ids,
                        .norm = config.final_norm ? &norm : nullptr,
                        .num_rows = rows};
  if (weights.project_out) {
    backend.linear(
        {.weight = weights.project_out.get(), .in = in, .out = work.embedded.as<float>()});
    in = {.x = work.embedded.data(), .dtype = DType::kF32, .num_rows = rows};
  }
  backend.linear({.weight = weights.head.get(), .in = in, .out = logits});
}

// ---- public

Decoder::Decoder(const ModelConfig& config, const std::string& directory, Backend& backend,
                 int max_model_len, int max_rows, Quantization quantization)
    : impl_(std::make_unique<Impl>(config, directory, backend, max_model_len, max_rows,
                                   quantization)) {}
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const { return impl_->config; }
int64_t Decoder::num_parameters() const { return impl_->weights.num_parameters; }
int64_t Decoder::weight_bytes() const { return impl_->weights.size_bytes; }

std::string Decoder::weight_format() const {
  const std::string kinds = describe_formats(impl_->weights.formats, impl_->backend.act_dtype());
  const std::string& stored = impl_->config.stored_format;
  return stored.empty() || impl_->config.random_weights ? kinds : str_cat(kinds, ", from ", stored);
}

void Decoder::forward(const BatchView& batch, std::span<const PagedKvView> kv_layers,
                      const Taps& taps) {
  impl_->forward(batch, kv_layers, taps);
}

void Decoder::compute_logits(std::span<const int32_t> row_ids, float* logits) {
  for (int32_t row : row_ids) SPECDEC_CHECK(row >= 0 && row < impl_->max_rows);
  impl_->compute_logits(impl_->backend.stage_ids(row_ids), static_cast<int>(row_ids.size()),
                        logits);
}

void Decoder::compute_logits_staged(const int32_t* row_ids, int num_rows, float* logits) {
  impl_->compute_logits(row_ids, num_rows, logits);
}

}  // namespace specdec
