// Vectors at the end of a row: loads and stores of the first n of 16 lanes, in either element type.
#pragma once

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

inline void store_lanes(float* out, F32x16 a, int n) {
  if (n == kLanes) {
    store(out, a);
  } else {
    store_partial(out, a, n);
  }
}
inline void store_lanes(uint16_t* out, F32x16 a, int n) {
  if (n == kLanes) {
    store_bf16(out, a);
  } else {
    store_bf16_partial(out, a, n);
  }
}
inline F32x16 load_lanes(const float* p, int n, float fill = 0.0f) {
  return n == kLanes ? load(p) : load_partial(p, n, fill);
}
inline F32x16 load_lanes(const uint16_t* p, int n) {
  return n == kLanes ? load_bf16(p) : load_bf16_partial(p, n);
}
inline int lanes_left(int64_t i, int64_t end) {
  return end - i < kLanes ? static_cast<int>(end - i) : kLanes;
}

// Calls body(first element, number of elements) for each vector of [begin, end).
template <class Body>
inline void for_each_vector(int64_t begin, int64_t end, Body&& body) {
  for (int64_t i = begin; i < end; i += kLanes) body(i, lanes_left(i, end));
}

inline float mean_of(const float* x, int64_t dim) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) { sum = sum + load_lanes(x + i, n); });
  return reduce_add(sum) / static_cast<float>(dim);
}

// Mean of (x - mean)^2, summed in 16 lanes in order of the elements, then by a fixed tree.
inline float mean_square(const float* x, int64_t dim, float mean) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) {
    const F32x16 d = load_lanes(x + i, n, mean) - broadcast(mean);
    sum = fma(d, d, sum);
  });
  return reduce_add(sum) / static_cast<float>(dim);
}

inline float inverse_root(float mean_square, float eps) {
  return 1.0f / __builtin_sqrtf(mean_square + eps);
}

}  // namespace specdec::cpu::SPECDEC_ISA
