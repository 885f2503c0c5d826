// Matrix products with packed weights. Plain aggregates only: see kernel_table.h.
//
// Packed layout: blocks of 16 outputs, each [k][16 outputs] float32, or for bfloat16
// [k / 2][16 outputs][2] (pairs of neighbouring k side by side, as vdpbf16ps and the AMX tile
// products want them). Outputs are padded with zeros to a multiple of 16, and so is k to an even
// number, or for bfloat16 to a multiple of 32, the depth of an AMX tile.
#pragma once

#include <cstdint>

namespace specdec::cpu {

// out[r, n] = sum_k x[r, k] W[n, k] (+ bias[n]) (+ out[r, n]) for a range of rows and of blocks.
// The sum is in float32 and in the order of k, whatever the ranges are.
struct LinearTask {
  const void* weights;  // packed, [ceil(out_features / 16)] blocks
  const void* x;        // [*, in_features] float32 or bfloat16, as the weights
  const float* bias;    // [out_features], or null
  float* out;           // [*, out_features]
  int64_t in_features;
  int64_t padded_k;  // k of a packed block
  int64_t out_features;
  int64_t row_begin;
  int64_t row_end;
  int64_t block_begin;
  int64_t block_end;
  bool accumulate;
};

struct LinearKernels {
  void (*bf16)(const LinearTask& task);
  void (*f32)(const LinearTask& task);
};

}  // namespace specdec::cpu
