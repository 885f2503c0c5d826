// The likeliest token of each row, found while a projection makes the logits: the warp that
// finishes a tile reduces over the tile, the block over its tiles in shared memory, and the block
// that comes last over all blocks. tests/cuda/backend/best_tokens_test.cc compares with the argmax
// of stored logits.
#pragma once

#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/token_keys.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

__device__ __forceinline__ uint64_t lesser_key(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Called by a warp. sums: [num_rows, 16 outputs] of a tile; keys: [num_rows] the best of this
// warp's tiles so far; both in shared memory.
template <FinishVariant kVariant>
__device__ __forceinline__ void find_best_of_tile(const FinishParams& finish, int tile,
                                                  int num_rows, const float* sums, uint64_t* keys) {
  const int lane = threadIdx.x % kWarpSize;
  const int count = num_rows * kTileOutputs;
  const int n = tile * kTileOutputs + lane % kTileOutputs;
  const bool is_output = n < finish.out_features;
  const int32_t* ids = finish.best.token_ids;
  const int32_t token = ids != nullptr && is_output ? ids[n] : n;
  const float bias = finish.bias != nullptr && is_output ? finish.bias[n] : 0.0f;
#pragma unroll 1
  for (int i = lane; i - lane < count; i += kWarpSize) {
    uint64_t key = worst_key();
    if (is_output && i < count)
      key = key_of(clean(stored_value<kVariant>(finish, sums[i], bias)), token);
#pragma unroll 1
    for (int distance = kTileOutputs / 2; distance > 0; distance /= 2) {
      key = lesser_key(key, __shfl_xor_sync(kAllLanes, key, distance));
    }
    if (lane % kTileOutputs != 0 || i >= count) continue;
    uint64_t& best = keys[i / kTileOutputs];
    best = lesser_key(best, key);
  }
}

// Called by all threads of a block when its tiles are done. keys: [kWarps, kFewRows] of its warps;
// is_last: shared scratch.
template <int kWarps>
__device__ __forceinline__ void find_best_of_blocks(const BestParams& best, int num_rows,
                                                    const uint64_t* keys, int* is_last) {
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < num_rows) {
    uint64_t key = worst_key();
#pragma unroll 1
    for (int warp = 0; warp < kWarps; ++warp) {
      key = lesser_key(key, keys[warp * kFewRows + threadIdx.x]);
    }
    best.keys[blockIdx.x * num_rows + threadIdx.x] = key;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = ptx::add_acquire_release(best.arrivals, 1) == gridDim.x - 1;
    if (*is_last != 0) *best.arrivals = 0;
  }
  __syncthreads();
  if (*is_last == 0) return;
#pragma unroll 1
  for (int row = threadIdx.x / kWarpSize; row < num_rows; row += kWarps) {
    uint64_t key = worst_key();
#pragma unroll 1
    for (int block = threadIdx.x % kWarpSize; block < static_cast<int>(gridDim.x);
         block += kWarpSize) {
      key = lesser_key(key, best.keys[block * num_rows + row]);
    }
#pragma unroll 1
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      key = lesser_key(key, __shfl_xor_sync(kAllLanes, key, distance));
    }
    if (threadIdx.x % kWarpSize == 0) {
      best.tokens[row] = value_of_key(key) > -kInfinity ? token_of(key) : 0;
    }
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
