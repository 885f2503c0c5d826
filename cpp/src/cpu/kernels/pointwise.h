// Row-wise operations: norms, the split of a fused QKV projection, activations. Plain aggregates
// only: see kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

struct NormTask {
  const float* x;       // [*, dim]
  const float* weight;  // [dim]
  const float* bias;    // [dim], or null
  void* out;            // [*, dim] float32 or bfloat16
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
  float eps;
  bool out_bf16;
};

// Normalises, rotates and stores the heads of a range of rows; see QkvArgs. The cache layout is the
// one of kernels/attention.h, at the dtype of q.
struct QkvTask {
  const float* qkv;       // [*, (num_heads + 2 * num_kv_heads) * head_dim]
  const float* q_norm;    // [head_dim], or null
  const float* k_norm;    // [head_dim], or null
  const float* rope_cos;  // [max_positions, rotary_dim / 2], or null
  const float* rope_sin;
  const int32_t* positions;     // [*]
  const int64_t* slot_mapping;  // [*]
  void* q;                      // [*, num_heads * head_dim]
  void* keys;
  void* values;
  int64_t row_begin;
  int64_t row_end;
  int num_heads;
  int num_kv_heads;
  int head_dim;  // at most kMaxHeadDim
  int rotary_dim;
  int block_size;
  float norm_eps;
};

enum : int { kMaxHeadDim = 1024 };

// Columns [column_begin, column_end) of a range of rows.
struct ActivationTask {
  const float* x;  // [*, gated ? 2 * dim : dim]
  void* out;       // [*, dim] float32 or bfloat16
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
  int64_t column_begin;
  int64_t column_end;
  bool gated;
  bool out_bf16;
};

enum : int { kNumActivations = 5 };

struct PointwiseKernels {
  void (*rms_norm)(const NormTask& task);
  void (*layer_norm)(const NormTask& task);
  void (*split_qkv_bf16)(const QkvTask& task);
  void (*split_qkv_f32)(const QkvTask& task);
  void (*activation[kNumActivations])(const ActivationTask& task);  // by specdec::Activation
};

}  // namespace specdec::cpu
