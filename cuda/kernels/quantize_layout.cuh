// Offsets in the layout of quantize_layout.h, and the values of its codes.
#pragma once

#include "cuda/common/numeric.cuh"
#include "cuda/kernels/quantize_layout.h"

namespace specdec::cuda::SPECDEC_TARGET {

// An output, as a tile and its row in the tile.
struct TileRow {
  int64_t tile;
  int row;
};
__host__ __device__ __forceinline__ TileRow tile_row_at(int64_t index) {
  return {index / kCodeTileRows, static_cast<int>(index % kCodeTileRows)};
}

// Offset of the block of input k.
__device__ __forceinline__ int64_t block_at(const CodeLayout& layout, int64_t tile, int k) {
  return (tile * layout.num_k_blocks + k / kQuantGroup) * layout.block_bytes;
}
// Offsets in a block. For even k, the byte of k + 1's code is two bytes after that of k's.
__device__ __forceinline__ int code_at(const CodeLayout& layout, int row, int k) {
  const int lane = row % 8 * 4 + k % 16 / 4;
  const int i = k % kQuantGroup / 16 * 4 + k % 4;
  const int byte = row / 8 + i % 2 * 2;
  return layout.is_int4 ? lane * 8 + i / 4 * 4 + byte : lane * 16 + i / 2 * 4 + byte;
}
__device__ __forceinline__ int scale_at(const CodeLayout& layout, int row) {
  return layout.codes_bytes + (row % 8 * (layout.extra != GroupExtra::kNone ? 4 : 2) + row / 8) * 2;
}
__device__ __forceinline__ int extra_at(const CodeLayout& layout, int row) {
  return scale_at(layout, row) + 4;
}
__device__ __forceinline__ int64_t output_scale_at(const CodeLayout& layout, TileRow tile_row) {
  return layout.scales_offset + (tile_row.tile * kCodeTileRows + tile_row.row) * 4;
}

// Element `at` of an array of float32, bfloat16 or float16.
__device__ __forceinline__ float float_at(const void* values, DType dtype, int64_t at) {
  if (dtype == DType::kF32) return static_cast<const float*>(values)[at];
  if (dtype == DType::kBF16) return to_float(static_cast<const Bf16*>(values)[at]);
  return to_float(static_cast<const Half*>(values)[at]);
}

// Scale and min of an output's group.
__device__ __forceinline__ float2 scale_and_min(const unsigned char* weights,
                                                const CodeLayout& layout, TileRow tile_row, int k) {
  float output_scale = 1.0f;
  if (layout.has_output_scales) {
    output_scale = *reinterpret_cast<const float*>(weights + output_scale_at(layout, tile_row));
  }
  if (!layout.is_grouped) return make_float2(output_scale, 0.0f);
  const unsigned char* block = weights + block_at(layout, tile_row.tile, k);
  const auto half = [block](int at) {
    return to_float(*reinterpret_cast<const Half*>(block + at));
  };
  const bool is_second = layout.extra == GroupExtra::kSecondScale && k % kQuantGroup >= 16;
  const int scale = is_second ? extra_at(layout, tile_row.row) : scale_at(layout, tile_row.row);
  return make_float2(
      __fmul_rn(output_scale, half(scale)),
      layout.extra == GroupExtra::kMin ? half(extra_at(layout, tile_row.row)) : 0.0f);
}
// The value of a code before it is scaled.
__device__ __forceinline__ float code_of(const unsigned char* weights, const CodeLayout& layout,
                                         TileRow tile_row, int k) {
  const unsigned char* block = weights + block_at(layout, tile_row.tile, k);
  const unsigned char byte = block[code_at(layout, tile_row.row, k)];
  if (layout.is_fp8) return from_e4m3(byte);
  if (!layout.is_int4) return static_cast<signed char>(byte);
  const int code = byte >> (k / 2 % 2 * 4) & 15;
  if (layout.has_table) {
    return reinterpret_cast<const signed char*>(weights + layout.scales_offset)[code];
  }
  int zero = layout.extra == GroupExtra::kMin ? 0 : 8;
  if (layout.extra == GroupExtra::kZero) {
    zero = *reinterpret_cast<const uint16_t*>(block + extra_at(layout, tile_row.row));
  }
  return static_cast<float>(code - zero);
}
// scale * code + min, rounded twice, as on the CPU.
__device__ __forceinline__ float weight_of(float2 scale_and_min, float code) {
  return __fadd_rn(__fmul_rn(scale_and_min.x, code), scale_and_min.y);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
