// Weights, embeddings and projections of the CPU backend.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {
namespace {

const CpuPackedLinear& packed(const PackedLinear* weight) {
  SPECDEC_CHECK(weight != nullptr);
  return static_cast<const CpuPackedLinear&>(*weight);
}

QkvTask qkv_task(const QkvArgs& args, const SumsCell& cell) {
  const PagedKvView& kv = args.kv;
  return {.cell = cell,
          .bias = args.bias,
          .q_norm = args.q_norm,
          .k_norm = args.k_norm,
          .v_norm = args.v_norm,
          .row_scales = nullptr,
          .norm_after_rope = args.norm_after_rope,
          .rope_cos = args.rope_cos,
          .rope_sin = args.rope_sin,
          .query_scales = args.query_scales,
          .positions = args.batch->positions,
          .slot_mapping = args.batch->slot_mapping,
          .q = args.q,
          .keys = kv.keys,
          .values = kv.values,
          .num_heads = args.num_heads,
          .num_kv_heads = kv.num_kv_heads,
          .head_dim = kv.head_dim,
          .rotary_dim = args.rotary_dim,
          .block_size = kv.block_size,
          .num_blocks = kv.num_blocks,
          .norm_eps = args.norm_eps};
}

// Task that normalises rows [begin, end) and writes them to `out`, the first at row 0.
RowsTask norm_task(const NormArgs& args, int64_t begin, int64_t end, void* out) {
  return {.x = args.x + begin * args.dim,
          .dim = args.dim,
          .norm = kind_of(&args.norm),
          .weight = args.norm.weight,
          .bias = args.norm.bias,
          .eps = args.norm.eps,
          .row_end = end - begin,
          .out = out,
          .out_stride = args.dim,
          .accumulate = args.accumulate,
          .sum_scale = args.scale};
}

// Rows that are the least work worth giving to another thread.
int64_t row_grain(int dim) { return std::max<int64_t>(1, 16 * 1024 / dim); }

void check_streams(const StreamsView& streams) {
  static_assert(kMaxTaskStreams == kMaxStreams);
  SPECDEC_CHECK_GT(streams.dim, 0);
  SPECDEC_CHECK(streams.num_streams > 0 && streams.num_streams <= kMaxStreams);
}

StreamsTask streams_task(const StreamsView& streams, const float* modalities, int64_t begin,
                         int64_t end) {
  return {.data = streams.data,
          .stride = streams.stride,
          .num_streams = streams.num_streams,
          .dim = streams.dim,
          .row_begin = begin,
          .row_end = end,
          .modalities = modalities};
}

char* out_row(const NormArgs& args, int64_t row) {
  const int64_t stride = args.out_stride != 0 ? args.out_stride : args.dim;
  return static_cast<char*>(args.out) +
         row * stride * static_cast<int64_t>(size_of(args.out_dtype));
}

}  // namespace

std::unique_ptr<PackedLinear> CpuBackend::pack_linear(const PackArgs& args) {
  return std::make_unique<CpuPackedLinear>(args, act_dtype_, kernels_, weights_, pool_);
}

std::unique_ptr<EmbeddingTable> CpuBackend::embedding_from(const PackedLinear& weight) {
  return std::make_unique<CpuEmbeddingTable>(packed(&weight));
}

std::unique_ptr<EmbeddingTable> CpuBackend::make_embedding(const WeightView& table,
                                                           WeightFormat format) {
  const PackArgs args = {.parts = {&table, 1}, .format = format};
  return std::make_unique<CpuEmbeddingTable>(
      std::make_unique<CpuPackedLinear>(args, act_dtype_, kernels_, weights_, pool_));
}

Buffer CpuBackend::make_vector(std::span<const TensorView> parts) {
  int64_t count = 0;
  for (const TensorView& part : parts) count += part.num_elements();
  Buffer vector = Buffer::host(static_cast<size_t>(count) * sizeof(float), "a weight vector");
  float* out = vector.as<float>();
  for (const TensorView& part : parts) {
    for (int64_t i = 0; i < part.num_elements(); ++i) *out++ = float_at(part.data, part.dtype, i);
  }
  return vector;
}

Buffer CpuBackend::make_ids(std::span<const int32_t> ids) {
  Buffer copy = Buffer::host(ids.size_bytes(), "token ids");
  std::ranges::copy(ids, copy.as<int32_t>());
  return copy;
}

void CpuBackend::embed(const EmbedArgs& args) {
  const CpuPackedLinear& table = static_cast<const CpuEmbeddingTable&>(*args.table).rows();
  const int64_t dim = table.in_features();
  float* scratch = args.accumulate ? grow_scratch(embed_scratch_, dim * num_threads()) : nullptr;
  const float* gathered = nullptr;
  if (table.share().by_outputs() && args.num_rows > 0) {
    float* rows = grow_scratch(gather_scratch_, args.num_rows * dim);
    gather_embeddings(args, rows);
    gathered = rows;
  }
  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t id = int64_t{args.token_ids[row]} + args.index_offset;
      if (args.unknown_is_first && id >= table.out_features()) id = 0;
      SPECDEC_CHECK_GE(id, 0);
      SPECDEC_CHECK_LT(id, table.out_features());
      float* out = args.out + row * dim;
      float* values = args.accumulate ? scratch + thread * dim : out;
      if (gathered != nullptr) {
        std::copy_n(gathered + row * dim, dim, values);
      } else {
        table.unpack_row(id, values);
      }
      if (args.scale != 1.0f) {
        for (int64_t i = 0; i < dim; ++i) values[i] *= args.scale;
      }
      if (!args.accumulate) continue;
      for (int64_t i = 0; i < dim; ++i) out[i] += values[i];
    }
  });
}

void CpuBackend::linear(const LinearArgs& args) {
  const CpuPackedLinear& weight = packed(args.weight);
  SPECDEC_CHECK(!weight.is_gated());
  if (weight.share().ranks() != nullptr) {
    if (args.in.num_rows == 0) return;
    return weight.share().by_inputs() ? linear_by_inputs(args) : linear_by_outputs(args);
  }
  projector_.run(weight, args.in, 1, [&](const SumsCell& cell) { store(args, cell); });
}

void CpuBackend::activated_linear(const ActivatedLinearArgs& args) {
  const CpuPackedLinear& weight = packed(args.weight);
  SPECDEC_CHECK(weight.is_gated() == args.gated);
  SPECDEC_CHECK(weight.share().ranks() == nullptr);
  SPECDEC_CHECK(args.gated || args.activation != Activation::kClampedSwiglu);
  const auto kernel = kernels_.epilogue.activation[static_cast<int>(args.activation)];
  const ActivationConstants& constants = args.constants;
  const ActivationFactors factors = {.positive = constants.positive,
                                     .negative = constants.negative,
                                     .beta = constants.beta,
                                     .eps = constants.eps,
                                     .alpha = constants.alpha,
                                     .limit = constants.limit};
  projector_.run(weight, args.in, args.gated ? 2 : 1, [&](const SumsCell& cell) {
    kernel({.cell = cell,
            .bias = args.bias,
            .out = args.out,
            .dim = weight.out_features() / (args.gated ? 2 : 1),
            .gated = args.gated,
            .out_bf16 = act_dtype_ == DType::kBF16,
            .factors = factors});
  });
}

void CpuBackend::project_qkv(const QkvArgs& args) {
  const CpuPackedLinear& weight = packed(args.weight);
  const PagedKvView& kv = args.kv;
  SPECDEC_CHECK(!weight.is_gated() && weight.share().ranks() == nullptr);
  SPECDEC_CHECK_EQ(weight.out_features(),
                   int64_t{args.num_heads + 2 * kv.num_kv_heads} * kv.head_dim);
  SPECDEC_CHECK_EQ(args.in.num_rows, args.batch->num_rows);
  SPECDEC_CHECK_LE(kv.head_dim, static_cast<int>(kMaxHeadDim));
  SPECDEC_CHECK_LE(args.rotary_dim, kv.head_dim);
  SPECDEC_CHECK_EQ(args.rotary_dim % 2, 0);
  SPECDEC_CHECK(!args.norm_all_heads || !args.norm_after_rope);
  if (args.norm_all_heads) return norm_and_split_qkv(args);
  // Without KV heads the cache is not looked at, and any kernel for the queries' dtype will do.
  const KvKind kind = kv.num_kv_heads > 0         ? kv_kind(kv)
                      : act_dtype_ == DType::kF32 ? kKvF32
                                                  : kKvBf16;
  const auto kernel = kernels_.epilogue.qkv[kind];
  // A unit is the smallest number of blocks that holds whole heads.
  const int64_t unit_blocks = std::lcm(int64_t{kv.head_dim}, CpuPackedLinear::kBlockOutputs) /
                              CpuPackedLinear::kBlockOutputs;
  projector_.run(weight, args.in, unit_blocks,
                 [&](const SumsCell& cell) { kernel(qkv_task(args, cell)); });
}

// These norms need a row's sums of all heads, so a first pass stores the sums and a second splits
// them.
void CpuBackend::norm_and_split_qkv(const QkvArgs& args) {
  SPECDEC_CHECK(args.q_norm != nullptr && args.k_norm != nullptr);
  const int64_t num_outputs = packed(args.weight).out_features();
  const int64_t num_rows = args.in.num_rows;
  float* sums = grow_scratch(qkv_scratch_, num_rows * num_outputs);
  linear({.weight = args.weight, .in = args.in, .bias = args.bias, .out = sums});
  const std::span<const RowScales> scales = row_scales(args, sums);
  const auto kernel = kernels_.epilogue.qkv[kv_kind(args.kv)];
  pool_.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int) {
    QkvTask task = qkv_task(args, {.sums = sums + begin * num_outputs,
                                   .stride = num_outputs,
                                   .row_begin = begin,
                                   .row_end = end,
                                   .begin = 0,
                                   .end = num_outputs});
    task.bias = nullptr;
    task.row_scales = scales.data();
    kernel(task);
  });
}

void CpuBackend::norm(const NormArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK(args.out_dtype == DType::kF32 ||
                (args.out_dtype == DType::kBF16 && !args.accumulate));
  SPECDEC_CHECK(args.accumulate || args.scale == 1.0f);
  if (args.activation != Activation::kIdentity) return activated_norm(args);
  const auto kernel = args.out_dtype == DType::kBF16 ? kernels_.rows.to_bf16 : kernels_.rows.to_f32;
  const bool is_dense = args.out_stride == 0 || args.out_stride == args.dim;
  pool_.parallel_for(args.num_rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    if (is_dense) return kernel(norm_task(args, begin, end, out_row(args, begin)));
    // The kernel fills the gap between two rows with zeros, so rows are passed one by one.
    for (int64_t row = begin; row < end; ++row) {
      kernel(norm_task(args, row, row + 1, out_row(args, row)));
    }
  });
}

void CpuBackend::activated_norm(const NormArgs& args) {
  SPECDEC_CHECK(!args.accumulate && args.activation <= Activation::kReluSquared);
  const auto activation = kernels_.epilogue.activation[static_cast<int>(args.activation)];
  const int64_t padded_dim = (args.dim + CpuPackedLinear::kBlockOutputs - 1) /
                             CpuPackedLinear::kBlockOutputs * CpuPackedLinear::kBlockOutputs;
  float* scratch = grow_scratch(norm_scratch_, padded_dim * num_threads());
  pool_.parallel_for(args.num_rows, 1, [&](int64_t begin, int64_t end, int thread) {
    float* normalised = scratch + thread * padded_dim;
    for (int64_t row = begin; row < end; ++row) {
      RowsTask task = norm_task(args, row, row + 1, normalised);
      task.out_stride = padded_dim;
      kernels_.rows.to_f32(task);
      activation({.cell = {.sums = normalised,
                           .stride = padded_dim,
                           .row_begin = 0,
                           .row_end = 1,
                           .begin = 0,
                           .end = padded_dim},
                  .bias = nullptr,
                  .out = out_row(args, row),
                  .dim = args.dim,
                  .gated = false,
                  .out_bf16 = args.out_dtype == DType::kBF16});
    }
  });
}

void CpuBackend::scale_rows(const ScaleRowsArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK((args.gates != nullptr) != (args.factors != nullptr) || args.num_rows == 0);
  const int64_t factor_stride = args.factor_stride != 0 ? args.factor_stride : args.dim;
  pool_.parallel_for(args.num_rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    kernels_.rows.scale_rows({.rows = args.rows,
                              .is_bf16 = act_dtype_ == DType::kBF16,
                              .gates = args.gates,
                              .factors = args.factors,
                              .factor_stride = factor_stride,
                              .factors_are_gates = args.factors_are_gates,
                              .dim = args.dim,
                              .row_begin = begin,
                              .row_end = end});
  });
}

void CpuBackend::sparse_gates(const SparseGatesArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK(args.activation <= Activation::kReluSquared);
  const auto kernel = kernels_.epilogue.sparse_gates[static_cast<int>(args.activation)];
  pool_.parallel_for(args.num_rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    kernel({.gates = args.gates,
            .deviations = args.deviations,
            .dim = args.dim,
            .row_begin = begin,
            .row_end = end});
  });
}

void CpuBackend::predict_streams(const PredictStreamsArgs& args) {
  const StreamsView& streams = args.streams;
  check_streams(streams);
  pool_.parallel_for(streams.num_rows, row_grain(streams.dim * streams.num_streams),
                     [&](int64_t begin, int64_t end, int) {
                       kernels_.rows.predict_streams(
                           {.streams = streams_task(streams, args.modalities, begin, end),
                            .coefficients = args.coefficients});
                     });
}

void CpuBackend::correct_streams(const CorrectStreamsArgs& args) {
  const StreamsView& streams = args.streams;
  check_streams(streams);
  SPECDEC_CHECK(args.active >= 0 && args.active < streams.num_streams);
  pool_.parallel_for(streams.num_rows, row_grain(streams.dim * streams.num_streams),
                     [&](int64_t begin, int64_t end, int) {
                       kernels_.rows.correct_streams(
                           {.streams = streams_task(streams, args.modalities, begin, end),
                            .active = args.active,
                            .activated = args.activated,
                            .coefficients = args.coefficients});
                     });
}

void CpuBackend::match_magnitude(const MatchMagnitudeArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK(args.accumulate || args.scale == 1.0f);
  pool_.parallel_for(args.num_rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    kernels_.rows.match_magnitude({.x = args.x,
                                   .reference = args.reference,
                                   .out = args.out,
                                   .accumulate = args.accumulate,
                                   .scale = args.scale,
                                   .dim = args.dim,
                                   .row_begin = begin,
                                   .row_end = end});
  });
}

void CpuBackend::store_rows(const StoreRowsArgs& args) {
  const PagedRowsView& to = args.to;
  SPECDEC_CHECK(args.column >= 0 && args.column + args.dim <= to.width);
  const NormParams norm = args.norm != nullptr ? *args.norm : NormParams{};
  const auto kernel = act_dtype_ == DType::kBF16 ? kernels_.rows.to_bf16 : kernels_.rows.to_f32;
  const int64_t element_bytes = static_cast<int64_t>(size_of(act_dtype_));
  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t slot = args.slot_mapping != nullptr ? args.slot_mapping[row] : row;
      if (slot < 0) continue;
      SPECDEC_CHECK(slot < to.num_slots);
      const int64_t offset = (slot * to.width + args.column) * element_bytes;
      kernel({.x = args.x + row * args.dim,
              .dim = args.dim,
              .norm = kind_of(args.norm),
              .weight = norm.weight,
              .bias = norm.bias,
              .eps = norm.eps,
              .row_end = 1,
              .out = static_cast<char*>(to.rows) + offset,
              .out_stride = args.dim});
    }
  });
}

void CpuBackend::load_rows(const LoadRowsArgs& args) {
  const PagedRowsView& from = args.from;
  SPECDEC_CHECK(args.column >= 0 && args.column + args.dim <= from.width);
  const bool is_bf16 = act_dtype_ == DType::kBF16;
  const int64_t element_bytes = static_cast<int64_t>(size_of(act_dtype_));
  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = args.out + row * args.dim;
      const int64_t slot = args.slots != nullptr ? args.slots[row] : row;
      SPECDEC_CHECK_LT(slot, from.num_slots);
      if (slot < 0) {
        if (!args.accumulate) std::fill_n(out, args.dim, 0.0f);
        continue;
      }
      const int64_t offset = (slot * from.width + args.column) * element_bytes;
      kernels_.rows.to_f32({.x = static_cast<const char*>(from.rows) + offset,
                            .x_bf16 = is_bf16,
                            .dim = args.dim,
                            .row_end = 1,
                            .out = out,
                            .out_stride = args.dim,
                            .accumulate = args.accumulate});
    }
  });
}

void CpuBackend::gather_rows(const GatherRowsArgs& args) {
  pool_.parallel_for(args.num_rows, 1, [&](int64_t begin, int64_t end, int) {
    kernels_.rows.to_f32({.x = args.rows,
                          .row_ids = args.row_ids,
                          .dim = args.dim,
                          .row_begin = begin,
                          .row_end = end,
                          .out = args.out,
                          .out_stride = args.dim,
                          .accumulate = args.accumulate});
  });
}

}  // namespace specdec::cpu
