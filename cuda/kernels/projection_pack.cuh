// Packs weights of a checkpoint into the layout that projections read (tiles.cuh).
#pragma once

#include "core/check.h"
#include "cuda/common/numeric.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(double value) { return static_cast<float>(value); }

// A thread packs 8 inputs of an output. Inputs past the end are zero.
template <class T, class Source>
__global__ void __launch_bounds__(256) pack_kernel(const PackParams params) {
  const int num_k_blocks = (params.in_features + kBlockInputs - 1) / kBlockInputs;
  const int64_t pieces = int64_t{num_k_blocks} * 4;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= params.num_rows * pieces) return;
  const int64_t row = index / pieces;
  const int first_k = static_cast<int>(index % pieces) * 8;
  const Source* source = static_cast<const Source*>(params.source) + row * params.in_features;
  const int64_t packed = packed_index(params.first_row + row, params.out_features, params.gated);
#pragma unroll
  for (int k = first_k; k < first_k + 8; k += 2) {
    const float low = k < params.in_features ? to_float(source[k]) : 0.0f;
    const float high = k + 1 < params.in_features ? to_float(source[k + 1]) : 0.0f;
    const int64_t offset = act_pair_offset(packed, k, num_k_blocks);
    *reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(params.packed) + offset) =
        pack<T>(low, high);
  }
}

template <class T, class Source>
void launch_pack(Stream& stream, const PackParams& params) {
  constexpr int kThreads = 256;
  const int64_t num_pieces =
      params.num_rows * ((params.in_features + kBlockInputs - 1) / kBlockInputs) * 4;
  const LaunchConfig config = {
      .grid = {static_cast<unsigned>((num_pieces + kThreads - 1) / kThreads)}, .block = {kThreads}};
  launch("pack_weights", stream, pack_kernel<T, Source>, config, params);
}

template <class T>
void pack_weights_as(Stream& stream, const PackParams& params) {
  switch (params.source_dtype) {
    case DType::kF32:
      return launch_pack<T, float>(stream, params);
    case DType::kF64:
      return launch_pack<T, double>(stream, params);
    case DType::kBF16:
      return launch_pack<T, Bf16>(stream, params);
    case DType::kF16:
      return launch_pack<T, Half>(stream, params);
    default:
      SPECDEC_CHECK(is_floating(params.source_dtype));
  }
}

inline void pack_weights(Stream& stream, const PackParams& params) {
  if (params.act_dtype == DType::kBF16) {
    pack_weights_as<Bf16>(stream, params);
  } else {
    pack_weights_as<Half>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
