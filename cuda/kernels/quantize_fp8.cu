// Packs weights as 8-bit floats: a checkpoint's codes as they are, other weights with one scale per
// output.
#include <cstdint>

#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/quantize_layout.cuh"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;
constexpr uint16_t kHalfOne = 0x3c00;
// Outputs below it become zero: division by their scale would overflow.
constexpr float kLeast = 0x1p-100f;

__device__ TileRow tile_row_of(const PackFp8Params& params, int64_t row) {
  return tile_row_at(packed_index(params.first_row + row, params.out_features, params.is_gated));
}

// A warp per row.
__global__ void fp8_scales_kernel(PackFp8Params params) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= params.num_rows) return;
  float scale;
  if (params.dtype == DType::kF8E4M3) {
    scale = params.scales[row];
  } else {
    float largest = 0.0f;
    for (int k = threadIdx.x % 32; k < params.layout.in_features; k += 32) {
      const int64_t at = row * params.layout.in_features + k;
      largest = fmaxf(largest, fabsf(float_at(params.values, params.dtype, at)));
    }
    largest = warp_max(largest);
    scale = largest < kLeast ? 0.0f : largest / kLargestE4m3;
  }
  if (threadIdx.x % 32 != 0) return;
  unsigned char* weights = static_cast<unsigned char*>(params.weights);
  *reinterpret_cast<float*>(weights + output_scale_at(params.layout, tile_row_of(params, row))) =
      scale;
}

// A thread packs a group of an output.
__global__ void pack_fp8_kernel(PackFp8Params params) {
  const CodeLayout& layout = params.layout;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / layout.num_k_blocks;
  if (row >= params.num_rows) return;
  const int begin = static_cast<int>(index % layout.num_k_blocks) * kQuantGroup;
  const int count = min(kQuantGroup, layout.in_features - begin);
  const int64_t first = row * layout.in_features + begin;
  const TileRow tile_row = tile_row_of(params, row);
  unsigned char* weights = static_cast<unsigned char*>(params.weights);
  unsigned char* block = weights + block_at(layout, tile_row.tile, begin);
  const bool is_kept = params.dtype == DType::kF8E4M3;
  const float scale = *reinterpret_cast<const float*>(weights + output_scale_at(layout, tile_row));
  for (int i = 0; i < count; ++i) {
    unsigned char code = 0;
    if (is_kept) {
      code = static_cast<const unsigned char*>(params.values)[first + i];
    } else if (scale != 0.0f) {
      code = to_e4m3(float_at(params.values, params.dtype, first + i) / scale);
    }
    block[code_at(layout, tile_row.row, i)] = code;
  }
  if (!layout.is_grouped) return;
  *reinterpret_cast<uint16_t*>(block + scale_at(layout, tile_row.row)) =
      is_kept ? params.factors[index] : kHalfOne;
}

}  // namespace

void pack_fp8(Stream& stream, const PackFp8Params& params);  // for quantize.cu

void pack_fp8(Stream& stream, const PackFp8Params& params) {
  const auto blocks_of = [](int64_t count, int of_block) {
    return static_cast<unsigned>((count + of_block - 1) / of_block);
  };
  launch("pack_fp8: scales", stream, fp8_scales_kernel,
         {.grid = {blocks_of(params.num_rows, kThreads / 32)}, .block = {kThreads}}, params);
  const int64_t num_groups = int64_t{params.num_rows} * params.layout.num_k_blocks;
  launch("pack_fp8", stream, pack_fp8_kernel,
         {.grid = {blocks_of(num_groups, kThreads)}, .block = {kThreads}}, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
