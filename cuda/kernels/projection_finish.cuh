// The epilogue of a projection: sums are stored, activated, or split into heads that are
// normalised, rotated and cached. The plain versions are reference::activate and split_qkv, see
// projection.h.
//
// A head is as wide as several tiles, and its tiles belong to different blocks, since blocks of
// whole heads would leave most of a GPU idle (8B shapes have 48 heads for 132 SMs). So tiles leave
// their sums in memory, in effect in L2, and count themselves; the block that completes a head
// finishes it. This costs a decode step one exchange through L2 after the last weights, where a
// second kernel would cost a launch.
#pragma once

#include "cuda/common/exact_math.cuh"
#include "cuda/common/kv_layout.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// The sums of a tile and up to 8 * kColumns rows, as mma.sync leaves them in a warp's registers.
template <int kColumns>
struct TileSums {
  float values[kColumns][4] = {};

  __device__ __forceinline__ void set(int column, float4 part) {
    values[column][0] = part.x;
    values[column][1] = part.y;
    values[column][2] = part.z;
    values[column][3] = part.w;
  }
  __device__ __forceinline__ void add(int column, float4 part) {
    values[column][0] += part.x;
    values[column][1] += part.y;
    values[column][2] += part.z;
    values[column][3] += part.w;
  }
  __device__ __forceinline__ float4 part(int column) const {
    const float (&sums)[4] = values[column];
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
  }

  // Stores the sums, scaled by FinishParams::scales, to [8 * kColumns rows, 16 outputs] in this
  // warp's shared memory.
  __device__ __forceinline__ void store(const FinishParams& finish, int tile, float* out) const {
    const int g = threadIdx.x % kWarpSize / 4;
    const int t = threadIdx.x % 4;
    float scales[2] = {1.0f, 1.0f};
    if (finish.scales != nullptr) {
      scales[0] = finish.scales[tile * kTileOutputs + g];
      scales[1] = finish.scales[tile * kTileOutputs + g + 8];
    }
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = column * 8 + 2 * t + i % 2;
        out[row * kTileOutputs + g + i / 2 * 8] = values[column][i] * scales[i / 2];
      }
    }
    __syncwarp();
  }
};

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The sum of kCount slices from `first` on, folded pairwise; part(slice) reads one.
template <int kCount, class Part>
__device__ __forceinline__ float4 fold_slices(int first, const Part& part) {
  if constexpr (kCount == 1) {
    return part(first);
  } else {
    const float4 left = fold_slices<kCount / 2>(first, part);
    return add(left, fold_slices<kCount / 2>(first + kCount / 2, part));
  }
}

// Sums of a tile that wait to be folded. They are in local memory, as they are touched only a few
// times per slice and registers limit how many rows a warp takes.
template <int kColumns>
struct FoldStack {
  float4 sums[kMaxPartialSums - 1][kColumns];

  __device__ __forceinline__ void push(const FoldEntry& entry, TileSums<kColumns> top) {
#pragma unroll 1
    for (int at = entry.stack_index + entry.num_folds - 1; at >= entry.stack_index; --at) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) top.add(column, sums[at][column]);
    }
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      sums[entry.stack_index][column] = top.part(column);
    }
  }
  __device__ __forceinline__ TileSums<kColumns> at(int index) const {
    TileSums<kColumns> result;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) result.set(column, sums[index][column]);
    return result;
  }
};

// The value that is stored for a sum, before it accumulates.
template <FinishVariant kVariant>
__device__ __forceinline__ float stored_value(const FinishParams& finish, float sum, float bias) {
  const float value = product(sum + bias, finish.scale);
  if constexpr (kVariant == FinishVariant::kAny || kVariant == FinishVariant::kSoftCap) {
    if (finish.soft_cap != 0.0f) return soft_cap(value, finish.soft_cap);
  }
  return value;
}

// Stores a tile as LinearArgs says, or to the workspace of heads. May change `sums`.
template <bool kHeads, FinishVariant kVariant>
__device__ __forceinline__ void store_tile(const FinishParams& finish, int tile, int first_row,
                                           int num_rows, float* sums) {
  constexpr int kBatch = 4;  // outputs that are read together to accumulate
  const int n = tile * kTileOutputs + threadIdx.x % kTileOutputs;
  if (n >= finish.out_features) return;
  const int count = num_rows * kTileOutputs;
  const int first = threadIdx.x % kWarpSize;
  float* out = (kHeads ? finish.heads.sums : static_cast<float*>(finish.out)) +
               static_cast<int64_t>(first_row) * finish.out_features + n;
  const auto out_at = [&](int i) {
    return out + static_cast<int64_t>(i / kTileOutputs) * finish.out_features;
  };
  if constexpr (kHeads) {
#pragma unroll 1
    for (int i = first; i < count; i += kWarpSize) *out_at(i) = sums[i];
    return;
  }
  const float bias = finish.bias != nullptr ? finish.bias[n] : 0.0f;
#pragma unroll 1
  for (int i = first; i < count; i += kWarpSize)
    sums[i] = stored_value<kVariant>(finish, sums[i], bias);
#pragma unroll 1
  for (int begin = first; begin < count; begin += kBatch * kWarpSize) {
    float before[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kWarpSize;
      if (finish.accumulate && i < count) before[j] = *out_at(i);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kWarpSize;
      if (i < count) *out_at(i) = finish.accumulate ? sums[i] + before[j] : sums[i];
    }
  }
}

template <class T>
__device__ __forceinline__ void activate_tile(const FinishParams& finish, int tile, int first_row,
                                              int num_rows, const float* sums) {
  const int n = tile * kTileOutputs + threadIdx.x % kTileOutputs;
  if (n >= finish.out_features) return;
  const float bias = finish.bias != nullptr ? finish.bias[n] : 0.0f;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpSize; i < num_rows * kTileOutputs; i += kWarpSize) {
    const int64_t row = first_row + i / kTileOutputs;
    static_cast<T*>(finish.out)[row * finish.out_features + n] =
        from_float<T>(activate(finish.activation, finish.constants, sums[i] + bias));
  }
}

// Finishes a gated tile: 8 gates, then their ups.
template <class T>
__device__ __forceinline__ void gate_tile(const FinishParams& finish, int tile, int first_row,
                                          int num_rows, const float* sums) {
  constexpr int kFeatures = kTileOutputs / 2;
  const int dim = finish.out_features / 2;
  const int feature = tile * kFeatures + threadIdx.x % kFeatures;
  if (feature >= dim) return;
  const float gate_bias = finish.bias != nullptr ? finish.bias[feature] : 0.0f;
  const float up_bias = finish.bias != nullptr ? finish.bias[dim + feature] : 0.0f;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpSize; i < num_rows * kFeatures; i += kWarpSize) {
    const int row = i / kFeatures;
    const float* gate = sums + row * kTileOutputs + i % kFeatures;
    const float result =
        gated(finish.activation, finish.constants, gate[0] + gate_bias, gate[kFeatures] + up_bias);
    static_cast<T*>(finish.out)[static_cast<int64_t>(first_row + row) * dim + feature] =
        from_float<T>(result);
  }
}

// Called by a warp. sums: [num_rows, 16 outputs] of a tile, in shared memory, for rows from
// first_row on.
template <class T, Finish kKind, FinishVariant kVariant = FinishVariant::kAny>
__device__ __forceinline__ void finish_tile(const FinishParams& finish, int tile, int first_row,
                                            int num_rows, float* sums) {
  if constexpr (kKind == Finish::kActivate) {
    activate_tile<T>(finish, tile, first_row, num_rows, sums);
  } else if constexpr (kKind == Finish::kActivateGated) {
    gate_tile<T>(finish, tile, first_row, num_rows, sums);
  } else {
    store_tile<kKind == Finish::kHeads, kVariant>(finish, tile, first_row, num_rows, sums);
  }
}
template <class T>
__device__ __forceinline__ void finish_tile(const FinishParams& finish, int tile, int first_row,
                                            int num_rows, float* sums) {
  switch (finish.kind) {
    case Finish::kStore:
      return finish_tile<T, Finish::kStore>(finish, tile, first_row, num_rows, sums);
    case Finish::kHeads:
      return finish_tile<T, Finish::kHeads>(finish, tile, first_row, num_rows, sums);
    case Finish::kActivate:
      return finish_tile<T, Finish::kActivate>(finish, tile, first_row, num_rows, sums);
    case Finish::kActivateGated:
      return finish_tile<T, Finish::kActivateGated>(finish, tile, first_row, num_rows, sums);
    case Finish::kBest:
      return;  // only in the few-rows kernel
  }
}

// Called by a warp: stores plane `plane` of a tile's sums, by way of shared memory.
template <int kColumns>
__device__ __forceinline__ void store_plane(const ProjectionParams& params, int plane, int tile,
                                            int first_row, int num_rows,
                                            const TileSums<kColumns>& sums, float* shared) {
  __syncwarp();  // the old contents of `shared` have been read
  sums.store(params.finish, tile, shared);
  FinishParams finish = params.finish;
  finish.out = static_cast<float*>(finish.out) + plane * finish.plane_stride;
  store_tile<false, FinishVariant::kAny>(finish, tile, first_row, num_rows, shared);
}

// --- heads ---

// Stores a finished key or value as codes in row `row` of the cache.
__device__ __forceinline__ void store_codes(const HeadsParams& heads, const KvLayout& layout,
                                            void* cache, int64_t row, const float* values) {
  const int lane = threadIdx.x % kWarpSize;
  const int dim = heads.kv.head_dim;
  float largest = 0.0f;
#pragma unroll 1
  for (int i = lane; i < dim; i += kWarpSize) largest = fmaxf(largest, fabsf(values[i]));
  largest = warp_max(largest);
  // A division is 500 bytes of code: one copy for both.
  float inverse = 0.0f;
  float scale = 0.0f;
#pragma unroll 1
  for (int i = 0; i < 2 && largest > 0.0f; ++i) {
    const float quotient = (i == 0 ? 127.0f : largest) / (i == 0 ? largest : 127.0f);
    if (i == 0) inverse = quotient;
    if (i == 1) scale = quotient;
  }
  int8_t* out = static_cast<int8_t*>(cache) + row * dim;
#pragma unroll 1
  for (int i = lane; i < dim; i += kWarpSize) {
    out[i] = static_cast<int8_t>(rintf(values[i] * inverse));
  }
  if (lane == 0) layout.scales(cache)[row] = scale;
}

// The factor of an RMS norm over `dim` values, given the sum of their squares.
__device__ __forceinline__ float norm_scale(float squares, int dim, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(dim) + eps);
}

// The factors of a row's norms over all heads.
struct RowScales {
  float q;
  float k;
};

// A row's rotation, cos and sin [rotary_dim / 2], its KV slot and the factor of its q.
struct RowPosition {
  const float* cos;
  const float* sin;
  int64_t slot;
  float query_scale;
};
__device__ __forceinline__ float query_scale_of(const HeadsParams& heads, int row) {
  return heads.query_scales != nullptr ? heads.query_scales[heads.positions[row]] : 1.0f;
}
__device__ __forceinline__ RowPosition position_of(const HeadsParams& heads, int row) {
  const int64_t offset = static_cast<int64_t>(heads.positions[row]) * (heads.rotary_dim / 2);
  return {heads.rope_cos + offset, heads.rope_sin + offset, heads.slot_mapping[row],
          query_scale_of(heads, row)};
}

// The norm of a head, in place: values [head_dim] in this warp's shared memory. `scale` is the
// factor of a norm over all heads.
__device__ __forceinline__ void normalise_head(const HeadsParams& heads, const float* weight,
                                               bool over_all_heads, float scale, float* values) {
  const int lane = threadIdx.x % kWarpSize;
  const int dim = heads.kv.head_dim;
  if (!over_all_heads) {
    float squares = 0.0f;
#pragma unroll 1
    for (int i = lane; i < dim; i += kWarpSize) squares = fmaf(values[i], values[i], squares);
    scale = norm_scale(warp_sum(squares), dim, heads.norm_eps);
  }
#pragma unroll 2
  for (int i = lane; i < dim; i += kWarpSize) values[i] = values[i] * scale * weight[i];
  __syncwarp();
}

// The rotation of a head, likewise.
__device__ __forceinline__ void rotate_head(const HeadsParams& heads, const RowPosition& position,
                                            float* values) {
  const int lane = threadIdx.x % kWarpSize;
  const int half = heads.rotary_dim / 2;
#pragma unroll 1
  for (int i = lane; i < half; i += kWarpSize) {
    const float cos = position.cos[i];
    const float sin = position.sin[i];
    const float a = values[i];
    const float b = values[half + i];
    values[i] = fmaf(a, cos, -(b * sin));
    values[half + i] = fmaf(b, cos, a * sin);
  }
  __syncwarp();
}

// A warp finishes one head of one row. `values` [head_dim] is its shared scratch; `scales` are
// given for norms over all heads.
template <class T, FinishVariant kVariant = FinishVariant::kAny>
__device__ __forceinline__ void finish_head(const FinishParams& finish, int head, int row,
                                            const RowPosition& position, float* values,
                                            const RowScales* scales = nullptr) {
  const HeadsParams& heads = finish.heads;
  const int lane = threadIdx.x % kWarpSize;
  const int dim = heads.kv.head_dim;
  const float* sums = heads.sums + static_cast<int64_t>(row) * finish.out_features + head * dim;
#pragma unroll 4
  for (int i = lane; i < dim; i += kWarpSize) values[i] = sums[i];
  if (finish.bias != nullptr) {
#pragma unroll 1
    for (int i = lane; i < dim; i += kWarpSize) values[i] += finish.bias[head * dim + i];
  }
  __syncwarp();
  const int kv_head = head - heads.num_heads;  // of keys, then of values
  const int num_kv_heads = heads.kv.num_kv_heads;
  const bool is_query = kv_head < 0;
  const bool is_value = kv_head >= num_kv_heads;
  const float* weight = is_query ? heads.q_norm : is_value ? heads.v_norm : heads.k_norm;
  const bool over_all_heads = scales != nullptr && !is_value;
  float row_scale = 1.0f;
  if (over_all_heads) {
    weight += (is_query ? head : kv_head) * dim;
    row_scale = is_query ? scales->q : scales->k;
  }
  // In either order, with one copy of the code.
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {
    if ((step == 1) != heads.norm_after_rope) {
      if (!is_value) rotate_head(heads, position, values);
    } else if (weight != nullptr) {
      normalise_head(heads, weight, over_all_heads, row_scale, values);
    }
  }
  void* out = heads.q;
  int64_t out_row = static_cast<int64_t>(row) * heads.num_heads + head;
  const KvLayout layout = {heads.kv.num_blocks, heads.kv.block_size, num_kv_heads, dim};
  if (!is_query) {
    out = is_value ? heads.kv.values : heads.kv.keys;
    out_row = layout.row(position.slot, is_value ? kv_head - num_kv_heads : kv_head);
  }
  if constexpr (kVariant == FinishVariant::kAny || kVariant == FinishVariant::kCodes) {
    if (!is_query && (kVariant == FinishVariant::kCodes || heads.kv.dtype == DType::kI8)) {
      store_codes(heads, layout, out, out_row, values);
      __syncwarp();
      return;
    }
  }
  T* elements = static_cast<T*>(out) + out_row * dim;
  const float scale = is_query ? position.query_scale : 1.0f;
#pragma unroll 1
  for (int i = lane; i < dim; i += kWarpSize) elements[i] = from_float<T>(values[i] * scale);
  __syncwarp();
}

// Bytes of shared memory that finish_heads takes.
inline constexpr int64_t heads_scratch_bytes(int num_warps, int head_dim) {
  return int64_t{num_warps} * (head_dim + 1) * 4;
}

// Counts this block's tiles and finishes the heads that they complete, for rows [first_row,
// end_row) of the block's row tile. kThreads threads of the block call it, after their sums are
// stored.
// There are no outputs from out_features on. scratch: shared, [num warps, head_dim], then [num
// warps] flags. find_position(row) gives a row's RowPosition.
template <class T, int kThreads, FinishVariant kVariant = FinishVariant::kAny, class FindPosition>
__device__ __forceinline__ void finish_heads(const FinishParams& finish, Range tiles, int row_tile,
                                             int first_row, int end_row, float* scratch,
                                             const FindPosition& find_position) {
  constexpr int kWarps = kThreads / kWarpSize;
  const HeadsParams& heads = finish.heads;
  const int warp = threadIdx.x / kWarpSize;
  const int dim = heads.kv.head_dim;
  int* is_complete = reinterpret_cast<int*>(scratch + kWarps * dim);
  const int num_heads = heads.num_heads + 2 * heads.kv.num_kv_heads;
  const int outputs_end = min(tiles.end * kTileOutputs, finish.out_features);
  const int first_head = tiles.begin * kTileOutputs / dim;
  const int last_head = (outputs_end - 1) / dim;
  const int num_rows = end_row - first_row;
#pragma unroll 1
  for (int batch = first_head; batch <= last_head; batch += kWarps) {
    ptx::named_barrier(1, kThreads);
    if (threadIdx.x < kWarps && batch + static_cast<int>(threadIdx.x) <= last_head) {
      const int head = batch + threadIdx.x;
      const int head_begin = head * dim / kTileOutputs;
      const int head_end = ((head + 1) * dim + kTileOutputs - 1) / kTileOutputs;
      const unsigned count = min(tiles.end, head_end) - max(tiles.begin, head_begin);
      uint32_t* arrivals = heads.arrivals + static_cast<int64_t>(row_tile) * num_heads + head;
      const unsigned before = ptx::add_acquire_release(arrivals, count);
      const bool complete = before + count == static_cast<unsigned>(head_end - head_begin);
      if (complete) *arrivals = 0;
      is_complete[threadIdx.x] = complete;
    }
    ptx::named_barrier(1, kThreads);
    const int num_batch = min(last_head - batch + 1, kWarps);
#pragma unroll 1
    for (int item = warp; item < num_batch * num_rows; item += kWarps) {
      const int index = item / num_rows;
      if (is_complete[index] == 0) continue;
      const int row = first_row + item % num_rows;
      finish_head<T, kVariant>(finish, batch + index, row, find_position(row),
                               scratch + warp * dim);
    }
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
