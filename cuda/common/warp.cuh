// Reductions over the 32 lanes of a warp, in one fixed order; every lane gets the result. The loops
// are rolled, because the compiler adds 100 bytes of code to every shuffle, for warps whose lanes
// have diverged.
#pragma once

#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll 1
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll 1
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
