// Logits as sort keys: the greatest logit has the least key, and among equal logits the lowest
// token.
#pragma once

#include <cstdint>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// The values of cpu/sampler.h and cpu/kernels/sampling.h.
inline constexpr float kMaxLogit = 1e30f;
inline constexpr int32_t kAnyToken = 0x7fffffff;

// Turns NaN into -inf and clamps to kMaxLogit, so that +inf becomes a number.
__device__ __forceinline__ float clean(float logit) {
  return logit > -kInfinity ? fminf(logit, kMaxLogit) : -kInfinity;
}

// Rises as the value falls; -0 counts as +0. -inf has the highest rank.
__device__ __forceinline__ uint32_t rank_of(float value) {
  uint32_t bits = __float_as_uint(value + 0.0f);
  bits ^= (bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u;
  return ~bits;
}
__device__ __forceinline__ float value_of(uint32_t rank) {
  uint32_t bits = ~rank;
  bits ^= (bits >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu;
  return __uint_as_float(bits);
}

// Rises as the value falls, ties by rising token: the least key is the best.
__device__ __forceinline__ uint64_t key_of(float value, int32_t token) {
  return static_cast<uint64_t>(rank_of(value)) << 32 | static_cast<uint32_t>(token);
}
__device__ __forceinline__ int32_t token_of(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}
__device__ __forceinline__ float value_of_key(uint64_t key) {
  return value_of(static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ uint64_t worst_key() { return key_of(-kInfinity, kAnyToken); }

}  // namespace specdec::cuda::SPECDEC_TARGET
