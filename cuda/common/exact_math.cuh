// Arithmetic that rounds as on the CPU: products that the compiler never fuses with a following
// addition, and the exponential of cpu/kernels/math.h.
#pragma once

#include <cmath>
#include <limits>

#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLowest = std::numeric_limits<float>::lowest();

__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
#ifdef SPECDEC_EMULATED
inline double product(double a, double b) { return a * b; }
#else
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
#endif

// e^x for x <= 0, with a relative error of at most 2e-7; 0 where e^x is below the smallest normal
// number.
__device__ __forceinline__ float exp_negative(float x) {
  if (x < -0x1.5d589ep+6f) return 0.0f;
  const float n = rintf(x * 0x1.715476p+0f);
  float r = fmaf(n, -0x1.62e400p-1f, x);
  r = fmaf(n, -0x1.7f7d1cp-20f, r);
  float q = 0x1.6a2434p-10f;
  q = fmaf(q, r, 0x1.1239e2p-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  const float power = fmaf(r * r, q, r) + 1.0f;
  const int exponent = static_cast<int>(fmaxf(n, -126.0f));
  return power * __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

// limit * tanh(x / limit), with an error of at most 2e-7 * limit.
__device__ __forceinline__ float soft_cap(float x, float limit) {
  const float decay = exp_negative(product(fabsf(x), -2.0f / limit));
  return copysignf(product(limit, (1.0f - decay) / (1.0f + decay)), x);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
