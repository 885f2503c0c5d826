// A warp's part of a tile: scores, softmax and weighted values, and the results of its item.
#pragma once

#include <cstdint>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/attention_tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Weights are relative to a maximum: 2^((score - maximum) * scale_log2). Without any score the
// maximum is -inf; 0 replaces it, so that weights become 0 and not NaN.
__device__ __forceinline__ float finite_maximum(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}
__device__ __forceinline__ float decay(float from, float to, float scale_log2) {
  return exp2f((from - finite_maximum(to)) * scale_log2);
}
// Partial softmaxes are joined in order by total = part * part_weight + total * total_weight.
__device__ __forceinline__ float join(float total, float total_weight, float part,
                                      float part_weight) {
  return fmaf(part, part_weight, total * total_weight);
}
__device__ __forceinline__ float inverse_of(float sum) { return sum > 0.0f ? 1.0f / sum : 0.0f; }
// What normalises a sum of weights, to which the sink of the head adds its own, if there is one.
// Where the sink is so far above all scores that its weight is infinite, that is 0.
__device__ __forceinline__ float normaliser(const AttendArgs& args, const WorkShape& shape,
                                            int row_head, float maximum, float sum) {
  constexpr float kLog2E = 1.44269504088896340736f;
  if (args.params.sinks != nullptr) {
    const float sink = args.params.sinks[row_head % shape.num_heads];
    sum += exp2f(sink * kLog2E - finite_maximum(maximum) * args.scale_log2);
  }
  return inverse_of(sum);
}
// Normalises. Adding 0 makes -0 a +0, as a zero's sign could depend on how splits were joined.
__device__ __forceinline__ float finished(float value, float inverse) {
  return fmaf(value, inverse, 0.0f);
}

// A warp's share of an item. kWarpColumns warps work on the same 16 pairs: each computes the scores
// of some of the keys and then some columns of the values.
template <class Tiles, int kWarpColumns>
struct WarpTile {
  using T = typename Tiles::Element;
  static constexpr int kDim = Tiles::kPaddedDim;
  static constexpr int kKeys = Tiles::kTile / kWarpColumns;
  static constexpr int kValues = kDim / kWarpColumns;

  int lane, warp_row, warp_column;
  float maxima[2];  // of the split so far, for pairs lane / 4 and lane / 4 + 8
  float sums[4];    // like a tile of values; [0] and [2] are used
  float values[kValues / 8][4];
  float total_maxima[2];
  float total_sums[2];
  float total_values[kValues / 8][4];

  __device__ int pair(int half) const { return warp_row * 16 + lane / 4 + 8 * half; }

  __device__ __forceinline__ void begin_item() {
    lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    warp_row = warp / kWarpColumns;
    warp_column = warp % kWarpColumns;
    begin_totals();
    begin_split();
  }

  __device__ __forceinline__ void begin_totals() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total_maxima[half] = -INFINITY;
      total_sums[half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kValues / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total_values[n][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void begin_split() {
    maxima[0] = maxima[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int n = 0; n < kValues / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void end_split(float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float maximum = fmaxf(total_maxima[half], maxima[half]);
      const float total_weight = decay(total_maxima[half], maximum, scale_log2);
      const float weight = decay(maxima[half], maximum, scale_log2);
      total_sums[half] = join(total_sums[half], total_weight, sums[2 * half], weight);
#pragma unroll
      for (int n = 0; n < kValues / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          total_values[n][i] = join(total_values[n][i], total_weight, values[n][i], weight);
        }
      }
      total_maxima[half] = maximum;
    }
  }

  __device__ __forceinline__ void score(const AttentionMemory<Tiles>& memory, const T* keys,
                                        float (&scores)[kKeys / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
    if constexpr (kKeys == 8) return score_eight(memory, keys, scores[0]);
    const T* query = memory.query();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, chunk_at(query, warp_row * 16 + lane % 16, 2 * k + lane / 16, kDim));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        const int key = warp_column * kKeys + n * 16 + lane % 8 + lane / 16 * 8;
        uint32_t b[4];
        ptx::ldmatrix_x4(b, chunk_at(keys, key, 2 * k + lane / 8 % 2, kDim));
        const uint32_t low[2] = {b[0], b[1]};
        const uint32_t high[2] = {b[2], b[3]};
        ptx::mma_m16n8k16<T>(scores[2 * n], a, low);
        ptx::mma_m16n8k16<T>(scores[2 * n + 1], a, high);
      }
    }
  }

  // The same with 8 keys, where a load has operands of two steps. The steps take turns at two sums,
  // since each waits for the last step of its sum.
  __device__ __forceinline__ void score_eight(const AttentionMemory<Tiles>& memory, const T* keys,
                                              float (&scores)[4]) const {
    const T* query = memory.query();
    float odd_scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, chunk_at(keys, warp_column * 8 + lane % 8, 2 * k + lane / 8, kDim));
      const uint32_t even[2] = {b[0], b[1]};
      const uint32_t odd[2] = {b[2], b[3]};
      uint32_t a[4];
      ptx::ldmatrix_x4(a, chunk_at(query, warp_row * 16 + lane % 16, 2 * k + lane / 16, kDim));
      ptx::mma_m16n8k16<T>(scores, a, even);
      ptx::ldmatrix_x4(a, chunk_at(query, warp_row * 16 + lane % 16, 2 * k + 2 + lane / 16, kDim));
      ptx::mma_m16n8k16<T>(odd_scores, a, odd);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] += odd_scores[i];
  }

  __device__ __forceinline__ static void cap(float limit, float (&scores)[kKeys / 8][4]) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = soft_cap(scores[n][i], limit);
    }
  }

  __device__ __forceinline__ void mask(const AttentionMemory<Tiles>& memory, int first_position,
                                       float (&scores)[kKeys / 8][4]) const {
    const int begins[2] = {memory.begins()[pair(0)], memory.begins()[pair(1)]};
    const int limits[2] = {memory.limits()[pair(0)], memory.limits()[pair(1)]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = first_position + warp_column * kKeys + n * 8 + 2 * (lane % 4) + i % 2;
        if (position < begins[i / 2] || position >= limits[i / 2]) scores[n][i] = -INFINITY;
      }
    }
  }

  // Turns scores into weights of type T, in words of two keys: [n][0] for the lane's first pair,
  // [n][1] for its second.
  __device__ __forceinline__ void softmax(const AttentionMemory<Tiles>& memory, float scale_log2,
                                          const float (&scores)[kKeys / 8][4],
                                          uint32_t (&weights)[kKeys / 8][2]) {
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = fmaxf(highest[half], __shfl_xor_sync(kAllLanes, highest[half], 1));
      highest[half] = fmaxf(highest[half], __shfl_xor_sync(kAllLanes, highest[half], 2));
    }
    if constexpr (kWarpColumns > 1) {
      float* shared = memory.maxima();  // [pairs, kWarpColumns]
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (lane % 4 == 0) shared[pair(half) * kWarpColumns + warp_column] = highest[half];
      }
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int w = 0; w < kWarpColumns; ++w) {
          highest[half] = fmaxf(highest[half], shared[pair(half) * kWarpColumns + w]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float maximum = fmaxf(maxima[half], highest[half]);
      const float weight = decay(maxima[half], maximum, scale_log2);
      maxima[half] = maximum;
      sums[2 * half] *= weight;
      sums[2 * half + 1] *= weight;
#pragma unroll
      for (int n = 0; n < kValues / 8; ++n) {
        values[n][2 * half] *= weight;
        values[n][2 * half + 1] *= weight;
      }
      const float offset = -(finite_maximum(maximum) * scale_log2);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        weights[n][half] = pack<T>(exp2f(fmaf(scores[n][2 * half], scale_log2, offset)),
                                   exp2f(fmaf(scores[n][2 * half + 1], scale_log2, offset)));
      }
    }
  }

  // Gives this warp's weights to the other warps of its pairs.
  __device__ __forceinline__ void share_weights(const AttentionMemory<Tiles>& memory,
                                                const uint32_t (&weights)[kKeys / 8][2]) const {
    T* shared = memory.weights();  // [pairs, kAttentionTile], of which kTile are used
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        T* chunk = chunk_at(shared, pair(half), warp_column * kKeys / 8 + n, kAttentionTile);
        *reinterpret_cast<uint32_t*>(chunk + 2 * (lane % 4)) = weights[n][half];
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void weigh(const AttentionMemory<Tiles>& memory, const T* tile_values,
                                        const uint32_t (&weights)[kKeys / 8][2]) {
    const uint32_t one = pack<T>(1.0f, 1.0f);
    const uint32_t ones[2] = {one, one};
#pragma unroll
    for (int k = 0; k < Tiles::kTile / 16; ++k) {
      uint32_t a[4];
      if constexpr (kWarpColumns > 1) {
        ptx::ldmatrix_x4(a, chunk_at(memory.weights(), warp_row * 16 + lane % 16, 2 * k + lane / 16,
                                     kAttentionTile));
      } else {
        a[0] = weights[2 * k][0];
        a[1] = weights[2 * k][1];
        a[2] = weights[2 * k + 1][0];
        a[3] = weights[2 * k + 1][1];
      }
      ptx::mma_m16n8k16<T>(sums, a, ones);
#pragma unroll
      for (int n = 0; n < kValues / 16; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4_transposed(b,
                                    chunk_at(tile_values, k * 16 + lane % 16,
                                             warp_column * kValues / 8 + 2 * n + lane / 16, kDim));
        const uint32_t low[2] = {b[0], b[1]};
        const uint32_t high[2] = {b[2], b[3]};
        ptx::mma_m16n8k16<T>(values[2 * n], a, low);
        ptx::mma_m16n8k16<T>(values[2 * n + 1], a, high);
      }
    }
  }

  __device__ __forceinline__ void attend(const AttentionMemory<Tiles>& memory, int stage,
                                         int first_position, const ItemRange& range,
                                         const AttendArgs& args) {
    const T* tile = memory.tile(stage);
    float scores[kKeys / 8][4];
    uint32_t weights[kKeys / 8][2];
    score(memory, tile, scores);
    if constexpr (!Tiles::kIsFew) {
      if (args.score_limit != 0.0f) cap(args.score_limit, scores);
    }
    if (first_position < range.common_begin || first_position + Tiles::kTile > range.common_limit) {
      mask(memory, first_position, scores);
    }
    softmax(memory, args.scale_log2, scores, weights);
    if constexpr (kWarpColumns > 1) share_weights(memory, weights);
    weigh(memory, tile + Tiles::kTileElements, weights);
  }

  // Writes the result of the item, or the partial result of one of its splits.
  __device__ __forceinline__ void write(const AttendArgs& args, const WorkShape& shape,
                                        const Item& item, const AttentionMemory<Tiles>& memory,
                                        int split) const {
    const int head_dim = args.params.kv.head_dim;
    // A division is 500 bytes of code and seldom runs: one copy for both halves.
    float inverses[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int half = 0; half < 2 && item.partial < 0; ++half) {
      const float inverse = normaliser(args, shape, memory.row_heads()[pair(half)],
                                       half == 0 ? total_maxima[0] : total_maxima[1],
                                       half == 0 ? total_sums[0] : total_sums[1]);
      if (half == 0) inverses[0] = inverse;
      if (half == 1) inverses[1] = inverse;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (pair(half) >= item.num_pairs) continue;
      const int own_row_head = memory.row_heads()[pair(half)];
      const int first = warp_column * kValues + 2 * (lane % 4);
      if (item.partial < 0) {
        const float inverse = inverses[half];
        const int row_head = item.extent.first_row * shape.num_heads + own_row_head;
        T* out =
            static_cast<T*>(args.params.out) + static_cast<int64_t>(row_head) * head_dim + first;
        const int num_columns = head_dim - first;
#pragma unroll
        for (int n = 0; n < kValues / 8; ++n) {
          const uint32_t words = pack<T>(finished(total_values[n][2 * half], inverse),
                                         finished(total_values[n][2 * half + 1], inverse));
          if (8 * n < num_columns) *reinterpret_cast<uint32_t*>(out + 8 * n) = words;
        }
      } else {
        const int own = item.sharing == Sharing::kSplits ? split - item.split_first : 0;
        const int partial = item.partial + own + own_row_head * item.num_columns;
        float* out = args.workspace.values + static_cast<int64_t>(partial) * kDim + first;
#pragma unroll
        for (int n = 0; n < kValues / 8; ++n) {
          *reinterpret_cast<float2*>(out + 8 * n) =
              make_float2(total_values[n][2 * half], total_values[n][2 * half + 1]);
        }
        if (warp_column == 0 && lane % 4 == 0) {
          *reinterpret_cast<float2*>(args.workspace.sums + static_cast<int64_t>(partial) * 2) =
              make_float2(total_maxima[half], total_sums[half]);
        }
      }
    }
  }
};

}  // namespace specdec::cuda::SPECDEC_TARGET
