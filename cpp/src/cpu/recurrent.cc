// Short convolutions, linear recurrences and gated norms on the CPU. A request's channels, and the
// columns of its matrices, never meet, so threads share them as they like.
#include <algorithm>

#include "core/check.h"
#include "cpu/cpu_backend.h"

namespace specdec::cpu {
namespace {

int64_t num_parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

void check_matrices(const LayerStateView& state) {
  const StateShape& shape = state.shape;
  SPECDEC_CHECK(shape.num_key_heads > 0 && shape.num_heads % shape.num_key_heads == 0);
  SPECDEC_CHECK(shape.key_dim > 0 && shape.key_dim % kNumSlices == 0);
  SPECDEC_CHECK_GT(shape.value_dim, 0);
}

}  // namespace

void CpuBackend::short_conv(const ShortConvArgs& args) {
  const StateShape& shape = args.state.shape;
  SPECDEC_CHECK(args.out_dtype == DType::kF32 || args.out_dtype == act_dtype_);
  SPECDEC_CHECK(shape.conv_channels > 0 && shape.conv_width >= 2 && shape.conv_width <= kMaxTaps);
  static_assert(kMaxTaps == kMaxConvWidth);
  recurrent_work_.plan(*args.batch, false);
  const auto kernel = args.out_dtype == DType::kBF16 ? kernels_.recurrence.conv_to_bf16
                                                     : kernels_.recurrence.conv_to_f32;
  const int64_t num_requests = args.batch->num_requests;
  const int64_t num_slabs = num_parts(shape.conv_channels, kConvSlab);
  const auto body = [&](int64_t begin, int64_t end, int) {
    float taps[kMaxTaps * kConvSlab];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / num_requests * kConvSlab;
      const int64_t limit = std::min<int64_t>(first + kConvSlab, shape.conv_channels);
      if (i == begin || i % num_requests == 0) {
        kernels_.recurrence.conv_taps({.weight = args.weight,
                                       .width = shape.conv_width,
                                       .begin = first,
                                       .end = limit,
                                       .taps = taps});
      }
      kernel({.x = args.x,
              .input_gates = args.input_gates,
              .output_gates = args.output_gates,
              .stride = args.stride,
              .taps = taps,
              .bias = args.bias,
              .silu = args.silu,
              .width = shape.conv_width,
              .num_channels = shape.conv_channels,
              .begin = first,
              .end = limit,
              .tails = args.state.tails,
              .conv_records = args.state.conv_records,
              .records = args.batch->recurrent.records,
              .out = args.out},
             recurrent_work_.requests()[i % num_requests]);
    }
  };
  pool_.parallel_for(num_slabs * num_requests, 1, body);
}

void CpuBackend::recurrence(const RecurrenceArgs& args) {
  check_matrices(args.state);
  const StateShape& shape = args.state.shape;
  const BatchView& batch = *args.batch;
  const bool is_delta = args.kind == RecurrenceKind::kGatedDelta;
  SPECDEC_CHECK(is_delta == (args.gates != nullptr) || batch.num_rows == 0);
  recurrent_work_.plan(batch, true);

  const int num_levels = recurrent_work_.num_levels();
  const int64_t thread_floats = int64_t{num_levels + 1} * shape.key_dim * kColumnSlab;
  const int64_t num_dots = int64_t{batch.num_rows} * shape.num_key_heads;
  float* const scratch =
      grow_scratch(recurrent_scratch_, thread_floats * num_threads() + num_dots +
                                           int64_t{batch.num_rows} * shape.num_heads);
  float* const dots = scratch + thread_floats * num_threads();
  const RecurrenceTask task = {.is_delta = is_delta,
                               .num_key_heads = shape.num_key_heads,
                               .num_heads = shape.num_heads,
                               .key_dim = shape.key_dim,
                               .value_dim = shape.value_dim,
                               .queries = args.queries,
                               .keys = args.keys,
                               .values = args.values,
                               .stride = args.stride,
                               .steps = args.steps,
                               .step_stride = args.step_stride,
                               .decay_rates = args.decay_rates,
                               .step_bias = args.step_bias,
                               .skip = args.skip,
                               .factors = is_delta ? args.gates : dots + num_dots,
                               .factor_stride = is_delta ? args.step_stride : shape.num_heads,
                               .dots = dots,
                               .matrices = args.state.matrices,
                               .state_records = args.state.records,
                               .record_size = shape.record_size(),
                               .records = batch.recurrent.records,
                               .out = args.out};
  pool_.parallel_for(num_dots, shape.num_key_heads, [&](int64_t begin, int64_t end, int) {
    kernels_.recurrence.prepare(task, begin, end);
  });

  const int64_t num_slabs = num_parts(shape.value_dim, kColumnSlab);
  const int64_t request_slabs = shape.num_heads * num_slabs;
  const auto slab_of = [&](int64_t item) -> ColumnSlab {
    const int64_t slab = item % request_slabs;
    const int64_t first = slab % num_slabs * kColumnSlab;
    return {.head = static_cast<int>(slab / num_slabs),
            .begin = static_cast<int>(first),
            .end = static_cast<int>(std::min<int64_t>(first + kColumnSlab, shape.value_dim))};
  };
  const auto request_of = [&](int64_t item) -> const RecurrentRequest& {
    return recurrent_work_.requests()[item / request_slabs];
  };
  const auto state_of = [&](int64_t item) -> const float* {
    const int64_t slot = request_of(item).slot_in;
    if (slot < 0) return nullptr;
    const ColumnSlab slab = slab_of(item);
    return args.state.matrices + slot * shape.matrix_size() +
           int64_t{slab.head} * shape.key_dim * shape.value_dim + slab.begin;
  };
  const auto body = [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const float* next = i + 1 < end ? state_of(i + 1) : nullptr;
      kernels_.recurrence.run(task, request_of(i), slab_of(i), num_levels, next,
                              scratch + thread * thread_floats);
    }
  };
  pool_.parallel_for(batch.num_requests * request_slabs, 1, body);
}

void CpuBackend::gated_norm(const GatedNormArgs& args) {
  SPECDEC_CHECK(args.dim > 0 && args.num_groups > 0);
  if (args.shared_heads != nullptr) return gated_norm_of_ranks(args);
  const auto kernel = act_dtype_ == DType::kBF16 ? kernels_.recurrence.gated_norm_to_bf16
                                                 : kernels_.recurrence.gated_norm_to_f32;
  float* const scratch = grow_scratch(norm_scratch_, int64_t{args.dim} * num_threads());
  const int64_t grain = std::max(1, 4096 / args.dim);
  const int64_t num_norms = int64_t{args.num_rows} * args.num_groups;
  pool_.parallel_for(num_norms, grain, [&](int64_t begin, int64_t end, int thread) {
    kernel({.x = args.x,
            .gates = args.gates,
            .gate_stride = args.gate_stride,
            .weight = args.weight,
            .eps = args.eps,
            .gates_first = args.gates_first,
            .num_groups = args.num_groups,
            .dim = args.dim,
            .scratch = scratch + int64_t{thread} * args.dim,
            .out = args.out},
           begin, end);
  });
}

}  // namespace specdec::cpu
