// Short convolutions, linear recurrences and gated norms of the CUDA backend.
#include "core/check.h"
#include "core/k_slices.h"
#include "cuda/backend/cuda_backend.h"

namespace specdec::cuda {
namespace {

RecurrentBatch requests_of(const BatchView& batch) {
  return {.recurrent = batch.recurrent,
          .cu_rows = batch.cu_rows,
          .num_requests = batch.num_requests,
          .num_rows = batch.num_rows};
}

// A batch that is rehearsed has no requests.
bool is_given(const BatchView& batch, const Stream& stream) {
  return batch.recurrent.slots_in != nullptr || stream.is_rehearsing();
}

}  // namespace

void CudaBackend::short_conv(const ShortConvArgs& args) {
  const StateShape& shape = args.state.shape;
  const BatchView& batch = *args.batch;
  SPECDEC_CHECK(args.out_dtype == DType::kF32 || args.out_dtype == act_dtype_);
  SPECDEC_CHECK(shape.conv_channels > 0 && shape.conv_width >= 2);
  SPECDEC_CHECK_LE(shape.conv_width, kMaxConvWidth);
  if (batch.num_requests == 0) return;
  SPECDEC_CHECK(is_given(batch, *stream_));
  const ShortConvParams params = {.x = args.x,
                                  .input_gates = args.input_gates,
                                  .output_gates = args.output_gates,
                                  .stride = args.stride,
                                  .weight = args.weight,
                                  .bias = args.bias,
                                  .silu = args.silu,
                                  .width = shape.conv_width,
                                  .num_channels = shape.conv_channels,
                                  .batch = requests_of(batch),
                                  .tails = args.state.tails,
                                  .conv_records = args.state.conv_records,
                                  .out = args.out,
                                  .out_dtype = args.out_dtype};
  if (batch.num_rows > 0) kernels_.recurrence.short_conv(*stream_, params);
  kernels_.recurrence.store_tails(*stream_, params);
}

void CudaBackend::recurrence(const RecurrenceArgs& args) {
  const StateShape& shape = args.state.shape;
  const BatchView& batch = *args.batch;
  const bool is_delta = args.kind == RecurrenceKind::kGatedDelta;
  SPECDEC_CHECK(shape.num_key_heads > 0 && shape.num_heads % shape.num_key_heads == 0);
  SPECDEC_CHECK(shape.key_dim > 0 && shape.key_dim % kNumSlices == 0);
  SPECDEC_CHECK_LE(shape.key_dim, kMaxKeyDim);
  SPECDEC_CHECK_GT(shape.value_dim, 0);
  SPECDEC_CHECK(is_delta == (args.gates != nullptr) || batch.num_rows == 0);
  if (batch.num_requests == 0) return;
  SPECDEC_CHECK(is_given(batch, *stream_));
  const size_t num_dots = size_t(batch.num_rows) * shape.num_key_heads;
  float* const dots =
      recurrence_workspace_.get<float>(num_dots + size_t(batch.num_rows) * shape.num_heads);
  const RecurrenceParams params = {.kind = args.kind,
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
                                   .batch = requests_of(batch),
                                   .matrices = args.state.matrices,
                                   .state_records = args.state.records,
                                   .record_size = shape.record_size(),
                                   .out = args.out};
  if (batch.num_rows > 0) kernels_.recurrence.prepare(*stream_, params);
  kernels_.recurrence.recurrence(*stream_, params);
}

void CudaBackend::gated_norm(const GatedNormArgs& args) {
  SPECDEC_CHECK(args.dim > 0 && args.num_groups > 0);
  if (args.num_rows == 0) return;
  GatedNormParams params = {.x = args.x,
                            .gates = args.gates,
                            .gate_stride = args.gate_stride,
                            .weight = args.weight,
                            .eps = args.eps,
                            .gates_first = args.gates_first,
                            .num_rows = args.num_rows,
                            .num_groups = args.num_groups,
                            .dim = args.dim,
                            .first = 0,
                            .width = args.num_groups * args.dim,
                            .out = args.out,
                            .act_dtype = act_dtype_};
  if (args.shared_heads != nullptr) {
    SPECDEC_CHECK(args.gates_first);
    const SharedHeads& shared = *args.shared_heads;
    SPECDEC_CHECK_EQ(params.width % shared.num_heads(), 0);
    const int head_dim = params.width / shared.num_heads();
    const HeadShare& own = shared.by_rank[static_cast<size_t>(shared.ranks->rank())];
    params.first = own.first_head * head_dim;
    params.width = own.num_heads * head_dim;
    kernels_.recurrence.gate(
        *stream_, {.x = args.x,
                   .gates = args.gates,
                   .gate_stride = args.gate_stride,
                   .num_rows = args.num_rows,
                   .width = params.width,
                   .out = rank_exchange_.own_floats(int64_t{args.num_rows} * params.width)});
    params.x = rank_exchange_.gather_values(shared, args.num_rows, head_dim);
    params.gates = nullptr;
  }
  kernels_.recurrence.gated_norm(*stream_, params);
}

}  // namespace specdec::cuda
