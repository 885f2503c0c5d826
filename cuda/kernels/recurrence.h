// Short convolutions, linear recurrences and gated norms of recurrent layers.
//
// Plain versions: reference::short_conv, recurrence and gated_norm
// (tests/testing/oracle/recurrent.cc); tests/cuda/backend/recurrent_test.cc compares with them.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "core/dtype.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The requests of a batch. Rows past the last request's are of no request.
struct RecurrentBatch {
  RecurrentRows recurrent;
  const int32_t* cu_rows;  // [num_requests + 1]
  int num_requests;
  int num_rows;
};

// See ShortConvArgs.
struct ShortConvParams {
  const float* x;
  const float* input_gates;   // or null
  const float* output_gates;  // or null
  int64_t stride;             // of these three
  const float* weight;        // [num_channels, width]
  const float* bias;          // or null
  bool silu;
  int width;
  int num_channels;
  RecurrentBatch batch;
  float* tails;
  float* conv_records;
  void* out;
  DType out_dtype;
};

// Most inputs of a recurrence's keys.
inline constexpr int kMaxKeyDim = 256;

// See RecurrenceArgs.
struct RecurrenceParams {
  RecurrenceKind kind;
  int num_key_heads;
  int num_heads;
  int key_dim;  // a multiple of 8, at most kMaxKeyDim
  int value_dim;
  float* queries;
  float* keys;
  const float* values;
  int64_t stride;  // of these three
  float* steps;    // decays, once the rows are prepared
  int64_t step_stride;
  const float* decay_rates;
  const float* step_bias;
  const float* skip;  // or null
  // What an update is multiplied by. Of kGatedDelta they are the gates until rows are prepared.
  float* factors;  // row i begins at factors + i * factor_stride
  int64_t factor_stride;
  float* dots;  // [num_rows, num_key_heads] k . q
  RecurrentBatch batch;
  float* matrices;
  float* state_records;
  int64_t record_size;
  float* out;
};

// out [num_rows, width] = x * SiLU(gates).
struct GateParams {
  const float* x;
  const float* gates;
  int64_t gate_stride;
  int num_rows;
  int width;
  float* out;
};

// GatedNormArgs.
struct GatedNormParams {
  const float* x;
  const float* gates;  // null: x has been gated
  int64_t gate_stride;
  const float* weight;
  float eps;
  bool gates_first;
  int num_rows;
  int num_groups;
  int dim;
  // Of the values of a row of x, those that weight and out have. A rank's, if ranks share groups.
  int first;
  int width;
  void* out;
  DType act_dtype;
};

struct RecurrenceKernels {
  // The rows' results and records.
  void (*short_conv)(Stream&, const ShortConvParams&);
  // The tails of the stores, once no other work reads those from before.
  void (*store_tails)(Stream&, const ShortConvParams&);
  // Keys and queries as the recurrence takes them, their products, decays and factors, and those of
  // them that records hold.
  void (*prepare)(Stream&, const RecurrenceParams&);
  void (*recurrence)(Stream&, const RecurrenceParams&);  // of prepared rows
  void (*gate)(Stream&, const GateParams&);
  void (*gated_norm)(Stream&, const GatedNormParams&);
};

namespace native {
RecurrenceKernels recurrence_kernels();
}
namespace emulated {
RecurrenceKernels recurrence_kernels();
}

}  // namespace specdec::cuda
