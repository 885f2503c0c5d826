// Epilogues of a projection, run cell by cell while the sums are in the cache: the sums are stored,
// activated, or split into heads that are rotated and cached; and activations of stored gates.
// Plain aggregates only: see kernel_table.h.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"

namespace specdec::cpu {

// A cell of sums: rows [row_begin, row_end) by outputs [begin, end) of the product.
struct SumsCell {
  const float* sums;  // [row_end - row_begin, stride]
  int64_t stride;
  int64_t row_begin;
  int64_t row_end;
  int64_t begin;  // a multiple of 16
  int64_t end;
};

// See LinearArgs.
struct StoreTask {
  SumsCell cell;
  const float* bias;     // [out_features], or null
  float* out;            // [*, out_features]
  int64_t out_features;  // outputs from here on are padding
  float scale;
  float soft_cap;  // 0: none
  bool accumulate;
};

// See ActivationConstants, whose header kernels cannot include.
struct ActivationFactors {
  float positive = 0.0f, negative = 0.0f, beta = 0.0f, eps = 0.0f;
  float alpha = 0.0f, limit = 0.0f;
};

// gated: blocks of 16 gates and of 16 ups alternate.
struct ActivationTask {
  SumsCell cell;
  const float* bias;  // [dim], gated [2 * dim]; or null
  void* out;          // [*, dim]
  int64_t dim;
  bool gated;
  bool out_bf16;
  ActivationFactors factors = {};
};

// See SparseGatesArgs.
struct SparseGatesTask {
  float* gates;  // [*, dim]
  float deviations;
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
};

// Factors of norms over all heads of a row's q, and over all heads of its k.
struct RowScales {
  float q;
  float k;
};

// One row's q of all heads, then its k of all heads.
struct RowScalesTask {
  const float* q_and_k;  // [q_dim + k_dim]
  int64_t q_dim;
  int64_t k_dim;
  float norm_eps;
};

// See QkvArgs; outputs are whole heads. The cache layout is the one of kernels/kv_layout.h.
struct QkvTask {
  SumsCell cell;
  const float* bias;            // [(num_heads + 2 * num_kv_heads) * head_dim], or null
  const float* q_norm;          // [head_dim], or null; with row_scales [num_heads * head_dim]
  const float* k_norm;          // [head_dim], or null; with row_scales [num_kv_heads * head_dim]
  const float* v_norm;          // [head_dim], or null
  const RowScales* row_scales;  // [*], of norms over all heads; else null
  bool norm_after_rope;         // not with row_scales
  const float* rope_cos;        // [max_positions, rotary_dim / 2], or null
  const float* rope_sin;
  const float* query_scales;    // [max_positions], or null
  const int32_t* positions;     // [*]
  const int64_t* slot_mapping;  // [*]
  void* q;                      // [*, num_heads * head_dim]
  void* keys;
  void* values;
  int num_heads;
  int num_kv_heads;
  int head_dim;  // at most kMaxHeadDim
  int rotary_dim;
  int block_size;
  int num_blocks;  // of the cache
  float norm_eps;
};

enum : int { kMaxHeadDim = 1024 };
enum : int { kNumActivations = 8, kNumPlainActivations = 6 };  // plain: without constants

struct EpilogueKernels {
  void (*store)(const StoreTask& task);
  void (*activation[kNumActivations])(const ActivationTask& task);  // by specdec::Activation
  void (*sparse_gates[kNumPlainActivations])(const SparseGatesTask& task);
  void (*qkv[kNumKvKinds])(const QkvTask& task);
  RowScales (*row_scales)(const RowScalesTask& task);
};

}  // namespace specdec::cpu
