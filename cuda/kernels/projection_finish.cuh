// What becomes of the sums of a product: stored, activated, or split into heads that are
// normalised, rotated and cached.
//
// A head is as wide as several tiles and the tiles of a head belong to different blocks, since
// blocks of whole heads would leave most of a GPU idle (8B shapes have 48 heads for 132
// multiprocessors). So tiles leave their sums in memory, which is to say in L2, and count
// themselves; the block that completes a head finishes it. This costs a decode step one exchange
// through L2 after the last weights, where a second kernel would cost a launch.
#pragma once

#include "cuda/device/kv_layout.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/tiles.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/kernels/projection.h"

namespace specdec::cuda::SPECDEC_TARGET {

__device__ __forceinline__ float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kRelu:
      return fmaxf(x, 0.0f);
    case Activation::kGelu:
      return x * (0.5f * erfcf(x * -0.70710678f));
    case Activation::kGeluTanh: {
      const float cubic = fmaf(x * x, 0.044715f, 1.0f);
      return x / (1.0f + expf(-1.5957691216f * (x * cubic)));
    }
    case Activation::kIdentity:
      break;
  }
  return x;
}

// The sums of a tile by up to 8 * kColumns rows, as mma.sync leaves them in a warp.
template <int kColumns>
struct TileSums {
  float values[kColumns][4] = {};

  __device__ __forceinline__ void add(const TileSums& other) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[column][i] += other.values[column][i];
    }
  }
};

// One sum of output n into row `row`, in float32.
__device__ __forceinline__ void store_sum(const FinishParams& finish, int n, int row, float sum) {
  if (n >= finish.out_features) return;
  const int64_t place = static_cast<int64_t>(row) * finish.out_features + n;
  if (finish.kind == Finish::kHeads) {
    finish.heads.sums[place] = sum;
    return;
  }
  float* out = static_cast<float*>(finish.out) + place;
  if (finish.bias != nullptr) sum += finish.bias[n];
  if (finish.accumulate) sum += *out;
  *out = sum;
}

template <class T>
__device__ __forceinline__ void store_activated(const FinishParams& finish, int n, int row,
                                                float sum) {
  if (n >= finish.out_features) return;
  if (finish.bias != nullptr) sum += finish.bias[n];
  static_cast<T*>(finish.out)[static_cast<int64_t>(row) * finish.out_features + n] =
      from_float<T>(activate(finish.activation, sum));
}

template <class T>
__device__ __forceinline__ void store_gated(const FinishParams& finish, int feature, int row,
                                            float gate, float up) {
  const int dim = finish.out_features / 2;
  if (feature >= dim) return;
  if (finish.bias != nullptr) {
    gate += finish.bias[feature];
    up += finish.bias[dim + feature];
  }
  static_cast<T*>(finish.out)[static_cast<int64_t>(row) * dim + feature] =
      from_float<T>(activate(finish.activation, gate) * up);
}

// Whole warps call it for the tile they hold; rows from num_rows on are not there.
template <class T, int kColumns>
__device__ __forceinline__ void finish_tile(const FinishParams& finish, int tile, int first_row,
                                            int num_rows, const TileSums<kColumns>& sums) {
  const int g = threadIdx.x % kWarpSize / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + column * 8 + 2 * t + i;
      if (row >= num_rows) continue;
      const float low = sums.values[column][i];
      const float high = sums.values[column][2 + i];
      if (finish.kind == Finish::kActivateGated) {
        store_gated<T>(finish, tile * 8 + g, row, low, high);
      } else if (finish.kind == Finish::kActivate) {
        store_activated<T>(finish, tile * kTileOutputs + g, row, low);
        store_activated<T>(finish, tile * kTileOutputs + g + 8, row, high);
      } else {
        store_sum(finish, tile * kTileOutputs + g, row, low);
        store_sum(finish, tile * kTileOutputs + g + 8, row, high);
      }
    }
  }
}

// --- heads ---

// A finished key or value into the cache.
template <class T>
__device__ __forceinline__ void store_token(const HeadsParams& heads, bool is_key, int kv_head,
                                            int64_t slot, const float* values) {
  const int lane = threadIdx.x % kWarpSize;
  const KvLayout layout = {heads.kv.num_blocks, heads.kv.block_size, heads.kv.num_kv_heads,
                           heads.kv.head_dim};
  const int64_t row = layout.row(slot, kv_head);
  void* cache = is_key ? heads.kv.keys : heads.kv.values;
  const int dim = heads.kv.head_dim;
  if (heads.kv.dtype != DType::kI8) {
    T* out = static_cast<T*>(cache) + row * dim;
    for (int i = lane; i < dim; i += kWarpSize) out[i] = from_float<T>(values[i]);
    return;
  }
  float largest = 0.0f;
  for (int i = lane; i < dim; i += kWarpSize) largest = fmaxf(largest, fabsf(values[i]));
  largest = warp_max(largest);
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  int8_t* out = static_cast<int8_t*>(cache) + row * dim;
  for (int i = lane; i < dim; i += kWarpSize) {
    out[i] = static_cast<int8_t>(rintf(values[i] * inverse));
  }
  if (lane == 0) layout.scales(cache)[row] = largest / 127.0f;
}

// Norm and rotation of a head, in place: values [head_dim] in shared memory, of this warp.
__device__ __forceinline__ void rotate_head(const HeadsParams& heads, const float* weight,
                                            int64_t position, float* values) {
  const int lane = threadIdx.x % kWarpSize;
  const int dim = heads.kv.head_dim;
  if (weight != nullptr) {
    float squares = 0.0f;
    for (int i = lane; i < dim; i += kWarpSize) squares = fmaf(values[i], values[i], squares);
    const float mean = warp_sum(squares) / static_cast<float>(dim);
    const float scale = 1.0f / sqrtf(mean + heads.norm_eps);
    for (int i = lane; i < dim; i += kWarpSize) values[i] = values[i] * scale * weight[i];
    __syncwarp();
  }
  if (heads.rope_cos == nullptr) return;
  const int half = heads.rotary_dim / 2;
  for (int i = lane; i < half; i += kWarpSize) {
    const float cos = heads.rope_cos[position * half + i];
    const float sin = heads.rope_sin[position * half + i];
    const float a = values[i];
    const float b = values[half + i];
    values[i] = fmaf(a, cos, -(b * sin));
    values[half + i] = fmaf(b, cos, a * sin);
  }
  __syncwarp();
}

// One head of one row, by a warp. `values` [head_dim] is its shared scratch.
template <class T>
__device__ __forceinline__ void finish_head(const FinishParams& finish, int head, int row,
                                            float* values) {
  const HeadsParams& heads = finish.heads;
  const int lane = threadIdx.x % kWarpSize;
  const int dim = heads.kv.head_dim;
  const float* sums = heads.sums + static_cast<int64_t>(row) * finish.out_features + head * dim;
  for (int i = lane; i < dim; i += kWarpSize) {
    values[i] = finish.bias != nullptr ? sums[i] + finish.bias[head * dim + i] : sums[i];
  }
  __syncwarp();
  const int num_kv_heads = heads.kv.num_kv_heads;
  if (head < heads.num_heads) {
    rotate_head(heads, heads.q_norm, heads.positions[row], values);
    T* q = static_cast<T*>(heads.q) + (static_cast<int64_t>(row) * heads.num_heads + head) * dim;
    for (int i = lane; i < dim; i += kWarpSize) q[i] = from_float<T>(values[i]);
  } else {
    const bool is_key = head < heads.num_heads + num_kv_heads;
    if (is_key) rotate_head(heads, heads.k_norm, heads.positions[row], values);
    const int kv_head = head - heads.num_heads - (is_key ? 0 : num_kv_heads);
    store_token<T>(heads, is_key, kv_head, heads.slot_mapping[row], values);
  }
  __syncwarp();
}

// Counts this block's tiles and finishes the heads they complete, for the rows [first_row,
// end_row) that the block's row tile has. Every thread of the block calls it, after its sums are
// stored. Tiles have no outputs from out_features on. scratch: shared, [num warps, head_dim].
template <class T, int kThreads>
__device__ __forceinline__ void finish_heads(const FinishParams& finish, Range tiles, int row_tile,
                                             int first_row, int end_row, float* scratch) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ int is_complete[kWarps];
  const HeadsParams& heads = finish.heads;
  const int warp = threadIdx.x / kWarpSize;
  const int dim = heads.kv.head_dim;
  const int num_heads = heads.num_heads + 2 * heads.kv.num_kv_heads;
  const int outputs_end = min(tiles.end * kTileOutputs, finish.out_features);
  const int first_head = tiles.begin * kTileOutputs / dim;
  const int last_head = (outputs_end - 1) / dim;
  const int num_rows = end_row - first_row;
  for (int batch = first_head; batch <= last_head; batch += kWarps) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x < kWarps && batch + static_cast<int>(threadIdx.x) <= last_head) {
      const int head = batch + threadIdx.x;
      const int head_begin = head * dim / kTileOutputs;
      const int head_end = ((head + 1) * dim + kTileOutputs - 1) / kTileOutputs;
      const unsigned count = min(tiles.end, head_end) - max(tiles.begin, head_begin);
      uint32_t* arrivals = heads.arrivals + static_cast<int64_t>(row_tile) * num_heads + head;
      const unsigned before = atomicAdd(arrivals, count);
      const bool complete = before + count == static_cast<unsigned>(head_end - head_begin);
      if (complete) *arrivals = 0;
      is_complete[threadIdx.x] = complete;
      __threadfence();
    }
    __syncthreads();
    const int num_batch = min(last_head - batch + 1, kWarps);
    for (int item = warp; item < num_batch * num_rows; item += kWarps) {
      const int index = item / num_rows;
      if (is_complete[index] == 0) continue;
      finish_head<T>(finish, batch + index, first_row + item % num_rows, scratch + warp * dim);
    }
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
