#include "model/decoder.h"

#include <array>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/decoder_weights.h"
#include "model/rope.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Intermediate results of one step, allocated once for the largest. "act" is the backend's
// activation dtype.
struct Workspace {
  Workspace(const ModelConfig& config, Backend& backend, int max_rows);

  Buffer hidden;        // [max_rows, hidden] float32: the residual stream
  Buffer hidden_spare;  // likewise, for norms whose result becomes the residual stream
  Buffer gathered;      // [max_rows, hidden] float32: rows that make logits
  Buffer embedded;      // [max_rows, embed_dim] float32, with embedding projections only
  Buffer linear_in;     // [max_rows, max(hidden, embed_dim)] act: what the next projections read
  Buffer qkv;           // [max_rows, (num_heads + 2 * num_kv_heads) * head_dim] float32
  Buffer q;             // [max_rows, num_heads * head_dim] act
  Buffer attention;     // [max_rows, num_heads * head_dim] act
  Buffer mlp_in;        // [max_rows, inner, twice when gated] float32
  Buffer mlp_mid;       // [max_rows, inner] act
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
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  hidden = rows(hidden_size, DType::kF32);
  if (config.norm_after) hidden_spare = rows(hidden_size, DType::kF32);
  gathered = rows(hidden_size, DType::kF32);
  if (config.embed_dim != 0) embedded = rows(config.embed_dim, DType::kF32);
  linear_in = rows(std::max<int64_t>(hidden_size, config.embed_dim), act);
  qkv = rows(q_size + 2 * kv_size, DType::kF32);
  q = rows(q_size, act);
  attention = rows(q_size, act);
  if (config.num_experts > 0) {
    router = rows(config.num_experts, DType::kF32);
  } else {
    mlp_in = rows(int64_t{config.intermediate_size} * (config.gated_mlp ? 2 : 1), DType::kF32);
    mlp_mid = rows(config.intermediate_size, act);
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
       int max_model_len, int row_limit);

  void forward(const BatchView& batch, std::span<const PagedKvView> kv_layers);
  void compute_logits(std::span<const int32_t> row_ids, float* logits);

  void embed(const BatchView& batch);
  void attention_block(const LayerWeights& layer, int index, const BatchView& batch,
                       const PagedKvView& kv);
  void mlp_block(const LayerWeights& layer, int num_rows);
  void dense_mlp(const LayerWeights& layer, int num_rows);
  void sparse_mlp(const ExpertWeights& experts, int num_rows);
  void begin_block(const NormWeights& norm, int num_rows);
  void end_block(const NormWeights& norm, int num_rows);
  void normalize(const NormWeights& norm, const float* x, void* out, DType out_dtype, int num_rows);
  void to_act(const float* x, int dim, int num_rows);
  void linear(const LinearWeights& weights, const void* x, float* out, int num_rows,
              bool accumulate);

  ModelConfig config;
  Backend& backend;
  int max_positions;
  int max_rows;
  DecoderWeights weights;
  Buffer rope_cos;  // [max_positions, rotary_dim / 2] float32, empty with learned positions
  Buffer rope_sin;
  int rotary_size = 0;
  float attention_scale;
  Workspace work;
  int num_rows_held = 0;  // rows of the last forward
};

Decoder::Impl::Impl(const ModelConfig& model_config, const std::string& directory, Backend& device,
                    int max_model_len, int row_limit)
    : config(model_config),
      backend(device),
      max_positions(max_model_len),
      max_rows(row_limit),
      attention_scale(config.attention_scale != 0.0f
                          ? config.attention_scale
                          : static_cast<float>(1.0 / std::sqrt(double(config.head_dim)))),
      work(config, device, row_limit) {
  SPECDEC_CHECK_GT(max_model_len, 0);
  SPECDEC_CHECK_GT(row_limit, 0);
  if (config.learned_positions && max_model_len > config.max_position_embeddings) {
    throw InvalidArgument("max_model_len", str_cat(max_model_len, " is more than the ",
                                                   config.max_position_embeddings,
                                                   " positions the checkpoint has embeddings for"));
  }
  weights = load_decoder_weights(config, directory, backend);
  if (config.rope.kind != RopeKind::kNone) {
    rotary_size = rotary_dim(config.rope, config.head_dim);
    const RopeTables tables = make_rope_tables(config.rope, config.head_dim, max_model_len);
    rope_cos = make_table(backend, tables.cos);
    rope_sin = make_table(backend, tables.sin);
  }
}

// ---- pieces

void Decoder::Impl::normalize(const NormWeights& norm, const float* x, void* out, DType out_dtype,
                              int num_rows) {
  backend.norm({.kind = config.norm_kind,
                .x = x,
                .weight = norm.weight.as<float>(),
                .bias = norm.bias.as<float>(),
                .eps = config.norm_eps,
                .out = out,
                .out_dtype = out_dtype,
                .num_rows = num_rows,
                .dim = config.hidden_size});
}

// x [num_rows, dim] into linear_in.
void Decoder::Impl::to_act(const float* x, int dim, int num_rows) {
  backend.activation({.activation = Activation::kIdentity,
                      .gated = false,
                      .x = x,
                      .out = work.linear_in.data(),
                      .out_dtype = backend.act_dtype(),
                      .num_rows = num_rows,
                      .dim = dim});
}

void Decoder::Impl::linear(const LinearWeights& layer, const void* x, float* out, int num_rows,
                           bool accumulate) {
  backend.linear({.weight = layer.weight.get(),
                  .x = x,
                  .bias = layer.bias.as<float>(),
                  .out = out,
                  .num_rows = num_rows,
                  .accumulate = accumulate});
}

// A block reads the normalised residual stream; with norms after the blocks, the stream itself.
void Decoder::Impl::begin_block(const NormWeights& norm, int num_rows) {
  if (config.norm_after) {
    to_act(work.hidden.as<float>(), config.hidden_size, num_rows);
  } else {
    normalize(norm, work.hidden.as<float>(), work.linear_in.data(), backend.act_dtype(), num_rows);
  }
}

void Decoder::Impl::end_block(const NormWeights& norm, int num_rows) {
  if (!config.norm_after) return;
  normalize(norm, work.hidden.as<float>(), work.hidden_spare.data(), DType::kF32, num_rows);
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
    to_act(embedded, config.embed_dim, rows);
    backend.linear({.weight = weights.project_in.get(),
                    .x = work.linear_in.data(),
                    .out = hidden,
                    .num_rows = rows});
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
  begin_block(layer.attention_norm, rows);
  linear(layer.qkv, work.linear_in.data(), work.qkv.as<float>(), rows, /*accumulate=*/false);
  backend.split_qkv({.qkv = work.qkv.as<float>(),
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
  linear(layer.attention_out, work.attention.data(), work.hidden.as<float>(), rows,
         /*accumulate=*/true);
  end_block(layer.attention_norm, rows);
}

void Decoder::Impl::dense_mlp(const LayerWeights& layer, int num_rows) {
  linear(layer.mlp_in, work.linear_in.data(), work.mlp_in.as<float>(), num_rows,
         /*accumulate=*/false);
  backend.activation({.activation = config.activation,
                      .gated = config.gated_mlp,
                      .x = work.mlp_in.as<float>(),
                      .out = work.mlp_mid.data(),
                      .out_dtype = backend.act_dtype(),
                      .num_rows = num_rows,
                      .dim = config.intermediate_size});
  linear(layer.mlp_out, work.mlp_mid.data(), work.hidden.as<float>(), num_rows,
         /*accumulate=*/true);
}

void Decoder::Impl::sparse_mlp(const ExpertWeights& experts, int num_rows) {
  backend.linear({.weight = experts.router.get(),
                  .x = work.linear_in.data(),
                  .out = work.router.as<float>(),
                  .num_rows = num_rows});
  backend.moe({.router_logits = work.router.as<float>(),
               .x = work.linear_in.data(),
               .gate_up = experts.gate_up,
               .down = experts.down,
               .activation = config.activation,
               .top_k = config.num_experts_per_token,
               .renormalize = config.renormalize_experts,
               .out = work.hidden.as<float>(),
               .num_rows = num_rows});
}

void Decoder::Impl::mlp_block(const LayerWeights& layer, int num_rows) {
  begin_block(layer.mlp_norm, num_rows);
  if (config.num_experts > 0) {
    sparse_mlp(layer.experts, num_rows);
  } else {
    dense_mlp(layer, num_rows);
  }
  end_block(layer.mlp_norm, num_rows);
}

void Decoder::Impl::forward(const BatchView& batch, std::span<const PagedKvView> kv_layers) {
  SPECDEC_CHECK_LE(batch.num_rows, max_rows);
  SPECDEC_CHECK_EQ(kv_layers.size(), weights.layers.size());
  num_rows_held = batch.num_rows;
  if (batch.num_rows == 0) return;
  embed(batch);
  for (int index = 0; index < config.num_layers; ++index) {
    const LayerWeights& layer = weights.layers[index];
    attention_block(layer, index, batch, kv_layers[index]);
    mlp_block(layer, batch.num_rows);
  }
}

void Decoder::Impl::compute_logits(std::span<const int32_t> row_ids, float* logits) {
  SPECDEC_CHECK_LE(row_ids.size(), static_cast<size_t>(max_rows));
  const int rows = static_cast<int>(row_ids.size());
  if (rows == 0) return;
  for (int32_t row : row_ids) SPECDEC_CHECK(row >= 0 && row < num_rows_held);
  backend.gather_rows({.x = work.hidden.as<float>(),
                       .row_ids = row_ids.data(),
                       .out = work.gathered.as<float>(),
                       .num_rows = rows,
                       .dim = config.hidden_size});
  if (config.final_norm) {
    normalize(weights.final_norm, work.gathered.as<float>(), work.linear_in.data(),
              backend.act_dtype(), rows);
  } else {
    to_act(work.gathered.as<float>(), config.hidden_size, rows);
  }
  if (weights.project_out) {
    backend.linear({.weight = weights.project_out.get(),
                    .x = work.linear_in.data(),
                    .out = work.embedded.as<float>(),
                    .num_rows = rows});
    to_act(work.embedded.as<float>(), config.embed_dim, rows);
  }
  backend.linear(
      {.weight = weights.head.get(), .x = work.linear_in.data(), .out = logits, .num_rows = rows});
}

// ---- public

Decoder::Decoder(const ModelConfig& config, const std::string& directory, Backend& backend,
                 int max_model_len, int max_rows)
    : impl_(std::make_unique<Impl>(config, directory, backend, max_model_len, max_rows)) {}
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const { return impl_->config; }
int64_t Decoder::num_parameters() const { return impl_->weights.num_parameters; }
int64_t Decoder::weight_bytes() const { return impl_->weights.size_bytes; }

void Decoder::forward(const BatchView& batch, std::span<const PagedKvView> kv_layers) {
  impl_->forward(batch, kv_layers);
}

void Decoder::compute_logits(std::span<const int32_t> row_ids, float* logits) {
  impl_->compute_logits(row_ids, logits);
}

}  // namespace specdec
