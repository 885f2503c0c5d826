// Prepares the rows of a projection: gather, norm, conversion to records. A block of kRowThreads
// threads prepares a row, or several at a time, always with the same bits.
#pragma once

#include <type_traits>

#include "cuda/common/numeric.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarpSize;
inline constexpr int kRowInputs = kRowThreads * 4;    // inputs that a block takes at once
inline constexpr int kSumBatch = 4;                   // loads of a thread in flight together
inline constexpr int kStoreBatch = 2;                 // likewise, with as many of the norm's
inline constexpr int kRowPartFloats = 2 * kRowWarps;  // of scratch, per row

// Elements i .. i+3 of a vector [dim]; zeros past its end. kWhole: dim is a multiple of 4.
template <bool kWhole>
__device__ __forceinline__ float4 load_vector(const float* vector, int i, int dim) {
  if constexpr (kWhole) {
    return i < dim ? *reinterpret_cast<const float4*>(vector + i)
                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  } else {
    const float x = i < dim ? vector[i] : 0.0f;
    const float y = i + 1 < dim ? vector[i + 1] : 0.0f;
    const float z = i + 2 < dim ? vector[i + 2] : 0.0f;
    const float w = i + 3 < dim ? vector[i + 3] : 0.0f;
    return make_float4(x, y, z, w);
  }
}

// Inputs i .. i+3 of a row of x, likewise.
template <class T, bool kIsFloat, bool kWhole>
__device__ __forceinline__ float4 load_row(const RowsParams& rows, int64_t row, int i) {
  if constexpr (kIsFloat) {
    return load_vector<kWhole>(static_cast<const float*>(rows.x) + row * rows.dim, i, rows.dim);
  } else {
    float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const T* x = static_cast<const T*>(rows.x) + row * rows.dim + i;
    if constexpr (kWhole) {
      if (i >= rows.dim) return values;
      const uint2 pairs = *reinterpret_cast<const uint2*>(x);
      const float2 low = unpack<T>(pairs.x);
      const float2 high = unpack<T>(pairs.y);
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      if (i < rows.dim) values.x = to_float(x[0]);
      if (i + 1 < rows.dim) values.y = to_float(x[1]);
      if (i + 2 < rows.dim) values.z = to_float(x[2]);
      if (i + 3 < rows.dim) values.w = to_float(x[3]);
      return values;
    }
  }
}

__device__ __forceinline__ int64_t source_row(const RowsParams& rows, int row) {
  return rows.row_ids != nullptr ? rows.row_ids[row] : row;
}

// The rows that code is compiled for. kPlain: is_plain(). kLayer: the same with a layer norm or a
// bias. kAny: any rows, which may be act and of any width.
enum class RowsKind : uint8_t { kPlain, kLayer, kAny };

// The numbers that normalise a row.
struct RowScale {
  float mean;
  float scale;
};

__device__ __forceinline__ float4 centred(float4 x, float mean) {
  return make_float4(x.x - mean, x.y - mean, x.z - mean, x.w - mean);
}

// `weight`: the norm's for these inputs.
template <bool kMayCentre, bool kWhole>
__device__ __forceinline__ float4 normalise(const RowsParams& rows, const RowScale& scale, int i,
                                            float4 x, const float4& weight) {
  if constexpr (kMayCentre) x = centred(x, scale.mean);
  x = make_float4(x.x * scale.scale, x.y * scale.scale, x.z * scale.scale, x.w * scale.scale);
  if (!kMayCentre || rows.bias == nullptr) {
    return make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
  }
  const float4 bias = load_vector<kWhole>(rows.bias, i, rows.dim);
  return make_float4(fmaf(x.x, weight.x, bias.x), fmaf(x.y, weight.y, bias.y),
                     fmaf(x.z, weight.z, bias.z), fmaf(x.w, weight.w, bias.w));
}

// Calls body(i, x, beside, whole) with inputs i .. i+3 of a row for all i of this thread, to the
// end of the last record and beyond; inputs past the end of the row are zeros. `beside` is what
// load(i, whole) returns. kBatch loads of both are in flight at a time, because the block is bound
// by memory latency here. kMayBeOdd: dim may be anything, not only a multiple of 4.
template <class T, bool kIsFloat, bool kMayBeOdd, int kBatch, class Load, class Body>
__device__ __forceinline__ void for_inputs(const RowsParams& rows, int64_t source, Load&& load,
                                           Body&& body) {
  const int own = threadIdx.x * 4;
  if (kMayBeOdd && rows.dim % 4 != 0) {
#pragma unroll 1
    for (int i = own; i < rows.dim + own; i += kRowInputs) {
      const std::false_type whole;
      body(i, load_row<T, kIsFloat, false>(rows, source, i), load(i, whole), whole);
    }
    return;
  }
#pragma unroll 1
  for (int begin = 0; begin < rows.dim; begin += kBatch * kRowInputs) {
    const int first = begin + own;
    const std::true_type whole;
    float4 x[kBatch];
    decltype(load(0, whole)) beside[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      x[i] = load_row<T, kIsFloat, true>(rows, source, first + i * kRowInputs);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) beside[i] = load(first + i * kRowInputs, whole);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) body(first + i * kRowInputs, x[i], beside[i], whole);
  }
}

// A sum over the block's threads for every row, in a fixed order: each warp leaves its part in
// parts [rows, kRowWarps]; after a barrier any thread can add them.
__device__ __forceinline__ void store_warp_sum(float value, int row, float* parts) {
  const float sum = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) parts[row * kRowWarps + threadIdx.x / kWarpSize] = sum;
}
__device__ __forceinline__ float block_sum_of(const float* parts, int row) {
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) sum += parts[row * kRowWarps + warp];
  return sum;
}

struct Nothing {};
struct LoadNothing {
  template <class Whole>
  __device__ Nothing operator()(int, Whole) const {
    return {};
  }
};

// Normalised rows are always float32.
template <bool kMayBeOdd>
__device__ __forceinline__ float sum_part(const RowsParams& rows, int64_t source) {
  float sum = 0.0f;
  for_inputs<float, true, kMayBeOdd, kSumBatch>(
      rows, source, LoadNothing(),
      [&](int, const float4& x, Nothing, auto) { sum += (x.x + x.y) + (x.z + x.w); });
  return sum;
}
template <RowsKind kKind>
__device__ __forceinline__ float square_part(const RowsParams& rows, int64_t source, float mean) {
  float sum = 0.0f;
  constexpr bool kMayBeOdd = kKind == RowsKind::kAny;
  const auto add = [&](int i, const float4& x, Nothing, auto) {
    float4 distance = x;
    if constexpr (kKind != RowsKind::kPlain) {
      // Elements past the end add nothing.
      distance = centred(x, mean);
      if (i >= rows.dim) distance.x = 0.0f;
      if (i + 1 >= rows.dim) distance.y = 0.0f;
      if (i + 2 >= rows.dim) distance.z = 0.0f;
      if (i + 3 >= rows.dim) distance.w = 0.0f;
    }
    sum = fmaf(distance.x, distance.x, sum);
    sum = fmaf(distance.y, distance.y, sum);
    sum = fmaf(distance.z, distance.z, sum);
    sum = fmaf(distance.w, distance.w, sum);
  };
  for_inputs<float, true, kMayBeOdd, kSumBatch>(rows, source, LoadNothing(), add);
  return sum;
}

// Prepares rows [first, first + count) of `rows`; every thread of the block calls it.
//   inputs_at(row, i): where inputs i .. i+3 of row first + row go, in shared or global memory
//   parts: shared scratch, [count, kRowPartFloats]
// Ends without a barrier.
template <class T, RowsKind kKind, class InputsAt>
__device__ __forceinline__ void prepare_rows(const RowsParams& rows, int first, int count,
                                             float* parts, InputsAt&& inputs_at) {
  constexpr bool kMayCentre = kKind != RowsKind::kPlain;
  constexpr bool kMayBeOdd = kKind == RowsKind::kAny;
  const float dim = static_cast<float>(rows.dim);
  float* square_parts = parts + count * kRowWarps;
  const auto mean_of = [&](int row) {
    return kMayCentre && rows.norm == RowNorm::kLayer ? block_sum_of(parts, row) / dim : 0.0f;
  };
  if (kMayCentre && rows.norm == RowNorm::kLayer) {
#pragma unroll 1
    for (int row = 0; row < count; ++row) {
      store_warp_sum(sum_part<kMayBeOdd>(rows, source_row(rows, first + row)), row, parts);
    }
    __syncthreads();
  }
  if (rows.norm != RowNorm::kNone) {
#pragma unroll 1
    for (int row = 0; row < count; ++row) {
      const int64_t source = source_row(rows, first + row);
      store_warp_sum(square_part<kKind>(rows, source, mean_of(row)), row, square_parts);
    }
    __syncthreads();
  }
  const int padded_dim = (rows.dim + kBlockInputs - 1) / kBlockInputs * kBlockInputs;
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    RowScale scale = {0.0f, 1.0f};
    if (rows.norm != RowNorm::kNone) {
      scale.mean = mean_of(row);
      scale.scale = 1.0f / sqrtf(block_sum_of(square_parts, row) / dim + rows.eps);
    }
    const auto weight_of = [&](int i, auto whole) {
      return rows.norm != RowNorm::kNone
                 ? load_vector<decltype(whole)::value>(rows.weight, i, rows.dim)
                 : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    const auto store = [&](int i, float4 x, const float4& weight, auto whole) {
      if (i >= padded_dim) return;
      if (rows.norm != RowNorm::kNone && i < rows.dim) {
        x = normalise<kMayCentre, decltype(whole)::value>(rows, scale, i, x, weight);
      }
      *reinterpret_cast<uint2*>(inputs_at(row, i)) =
          make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
    };
    const int64_t source = source_row(rows, first + row);
    if (!kMayBeOdd || rows.is_float) {
      for_inputs<T, true, kMayBeOdd, kStoreBatch>(rows, source, weight_of, store);
    } else if constexpr (kMayBeOdd) {
      for_inputs<T, false, kMayBeOdd, kStoreBatch>(rows, source, weight_of, store);
    }
  }
}

// One row per block.
template <class T>
__global__ void __launch_bounds__(kRowThreads) prepare_rows_kernel(const PrepareParams params) {
  __shared__ float parts[kRowPartFloats];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int num_records = (params.rows.dim + kBlockInputs - 1) / kBlockInputs;
  const int row = blockIdx.x;
  unsigned char* records = static_cast<unsigned char*>(params.out) +
                           static_cast<int64_t>(row) * num_records * kRecordBytes;
  prepare_rows<T, RowsKind::kAny>(params.rows, row, 1, parts,
                                  [&](int, int i) { return records + 2 * i; });
}

template <class T>
void launch_prepare_rows(Stream& stream, const PrepareParams& params) {
  launch("prepare_rows", stream, prepare_rows_kernel<T>,
         {.grid = {static_cast<unsigned>(params.rows.num_rows)},
          .block = {kRowThreads},
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
