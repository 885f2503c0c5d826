// The functions of kernels/math.h of one instruction set, callable from a test. Plain aggregates
// only, for the reason given in cpu/kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

struct SimdFunctions {
  // Sixteen lanes each.
  void (*exp)(const float* x, float* out);
  void (*log)(const float* x, float* out);
  void (*erf)(const float* x, float* out);
  void (*sigmoid)(const float* x, float* out);
  void (*softplus)(const float* x, float* out);
  void (*to_bf16)(const float* x, uint16_t* out);
  float (*reduce_add)(const float* x);
  float (*reduce_max)(const float* x);
  // Operate on the first n lanes: other lanes are loaded as `fill`, and not stored to out.
  void (*load_partial)(const float* x, int n, float fill, float* out);
  void (*store_partial)(const float* x, int n, float* out);
  void (*store_bf16_partial)(const float* x, int n, uint16_t* out);
  // acc[lane] += the dot product of 16 pairs with the one pair of `broadcast`.
  void (*dot_bf16)(const uint32_t* pairs, const uint32_t* broadcast, float* acc);
};

}  // namespace specdec::cpu
