// Before and after a library's GEMM: unpacks weights into a row-major matrix, and runs the epilogue
// on the sums. ProjectionChooserTest (tests/cuda/backend/projection_chooser_test.cc) compares the
// whole with the plain versions of projection.h.
#include "core/check.h"
#include "cuda/common/target.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_finish.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void unpack_weights(Stream& stream, const UnpackParams& params);  // for projection.cu
void finish_sums(Stream& stream, const FinishSumsParams& params);

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kUnpackBlocks = 4;  // k blocks that a warp loads together
constexpr int kFinishRows = 32;   // rows of a tile that a warp finishes at once
constexpr int kFinishFloats = kFinishRows * kTileOutputs;

// A warp takes kUnpackBlocks k blocks of a tile; a lane has 8 inputs of two outputs of each.
__global__ void __launch_bounds__(kThreads) unpack_kernel(const UnpackParams params) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_k_blocks = params.num_k_blocks;
  const int first_block = (blockIdx.x * kWarps + threadIdx.x / kWarpSize) * kUnpackBlocks;
  const int tile = blockIdx.y;
  const unsigned char* tile_weights = static_cast<const unsigned char*>(params.weights) +
                                      int64_t{tile} * num_k_blocks * ActFormat<Bf16>::kBlockBytes;
  ActFormat<Bf16>::Weights weights[kUnpackBlocks];  // only bits are moved: any act dtype
#pragma unroll
  for (int i = 0; i < kUnpackBlocks; ++i) {
    if (first_block + i >= num_k_blocks) continue;
    weights[i] = ActFormat<Bf16>::load_weights(
        tile_weights + int64_t{first_block + i} * ActFormat<Bf16>::kBlockBytes, lane);
  }
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int64_t row_bytes = int64_t{num_k_blocks} * kRecordBytes;
  unsigned char* upper = static_cast<unsigned char*>(params.out) +
                         (int64_t{tile} * kTileOutputs + lane / 4) * row_bytes +
                         lane % 4 * kInputBytes;
  unsigned char* lower = upper + 8 * row_bytes;
#pragma unroll
  for (int i = 0; i < kUnpackBlocks; ++i) {
    if (first_block + i >= num_k_blocks) continue;
    const uint4& first = weights[i].steps[0];
    const uint4& second = weights[i].steps[1];
    const int64_t offset = int64_t{first_block + i} * kRecordBytes;
    const auto store = [offset](unsigned char* row, int step, uint32_t low, uint32_t high) {
      *reinterpret_cast<uint2*>(row + offset + step * kHalfRecordBytes) = make_uint2(low, high);
    };
    store(upper, 0, first.x, first.z);
    store(lower, 0, first.y, first.w);
    store(upper, 1, second.x, second.z);
    store(lower, 1, second.y, second.w);
  }
}

// A sum, folded from planes if there are any, times its output's scale.
__device__ __forceinline__ float folded_sum(const FinishSumsParams& params, const float* sums,
                                            float scale) {
  if (params.fold_order.num_entries == 0) return sums[0] * scale;
  float stack[kMaxPartialSums - 1];
  for (int i = 0; i < params.fold_order.num_entries; ++i) {
    const FoldEntry entry = params.fold_order.entry(i);
    float top = sums[i * params.plane_stride];
    for (int at = entry.stack_index + entry.num_folds - 1; at >= entry.stack_index; --at) {
      top += stack[at];
    }
    stack[entry.stack_index] = top;
  }
  return stack[0] * scale;
}

// A warp brings rows of a tile to shared memory, where the projection kernels leave their sums,
// too. Grid: [blocks of tiles, blocks of rows]. Neighbouring warps read neighbouring outputs.
template <class T>
__global__ void __launch_bounds__(kThreads) finish_sums_kernel(const FinishSumsParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int warp = threadIdx.x / kWarpSize;
  const int index = blockIdx.x * kWarps + warp;
  if (index >= params.num_tiles) return;
  const int tile = params.first_tile + index;
  const int first_row = blockIdx.y * kFinishRows;
  const int num_rows = min(kFinishRows, params.num_rows - first_row);
  const int output = threadIdx.x % kTileOutputs;
  const float* sums = params.sums + index * kTileOutputs + output;
  const float scale =
      params.finish.scales != nullptr ? params.finish.scales[tile * kTileOutputs + output] : 1.0f;
  float* shared = reinterpret_cast<float*>(shared_bytes) + warp * kFinishFloats;
#pragma unroll 4
  for (int i = threadIdx.x % kWarpSize; i < num_rows * kTileOutputs; i += kWarpSize) {
    shared[i] = folded_sum(params, sums + (first_row + i / kTileOutputs) * params.ld, scale);
  }
  __syncwarp();
  finish_tile<T>(params.finish, tile, first_row, num_rows, shared);
}

// A warp per head of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) finish_heads_kernel(const FinishSumsParams params) {
  SPECDEC_SHARED_BYTES(shared);
  ptx::wait_for_previous();
  ptx::let_next_start();
  const HeadsParams& heads = params.finish.heads;
  const int num_heads = heads.num_heads + 2 * heads.kv.num_kv_heads;
  const int warp = threadIdx.x / kWarpSize;
  const int head = blockIdx.x * kWarps + warp;
  if (head >= num_heads) return;
  finish_head<T>(params.finish, head, blockIdx.y, position_of(heads, blockIdx.y),
                 reinterpret_cast<float*>(shared) + warp * heads.kv.head_dim);
}

// The sum of the squares of `count` values over a block, in an order that `count` alone decides.
__device__ __forceinline__ float block_squares(const float* values, int count, float* partial) {
  float squares = 0.0f;
  for (int i = threadIdx.x; i < count; i += kThreads) squares = fmaf(values[i], values[i], squares);
  squares = warp_sum(squares);
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = squares;
  __syncthreads();
  float total = partial[0];
  for (int warp = 1; warp < kWarps; ++warp) total += partial[warp];
  return total;
}

// A block per row, whose q and k are normalised over all heads.
template <class T>
__global__ void __launch_bounds__(kThreads) norm_all_heads_kernel(const FinishSumsParams params) {
  SPECDEC_SHARED_BYTES(shared);
  __shared__ float partial[kWarps];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const FinishParams& finish = params.finish;
  const HeadsParams& heads = finish.heads;
  const int dim = heads.kv.head_dim;
  const int q_dim = heads.norm_q_dim;
  const int k_dim = heads.norm_k_dim;
  const float* sums = heads.norm_sums + static_cast<int64_t>(blockIdx.x) * heads.norm_stride;
  const RowScales scales = {
      norm_scale(block_squares(sums, q_dim, partial), q_dim, heads.norm_eps),
      norm_scale(block_squares(sums + q_dim, k_dim, partial), k_dim, heads.norm_eps)};
  const int warp = threadIdx.x / kWarpSize;
  const int num_heads = heads.num_heads + 2 * heads.kv.num_kv_heads;
  float* values = reinterpret_cast<float*>(shared) + warp * dim;
  for (int head = warp; head < num_heads; head += kWarps) {
    finish_head<T>(finish, head, blockIdx.x, position_of(heads, blockIdx.x), values, &scales);
  }
}

unsigned blocks_of(int count, int each) { return static_cast<unsigned>((count + each - 1) / each); }

template <class T>
void finish_sums_of(Stream& stream, const FinishSumsParams& params) {
  if (params.finish.kind == Finish::kHeads) {
    const HeadsParams& heads = params.finish.heads;
    const auto num_rows = static_cast<unsigned>(params.num_rows);
    LaunchConfig config = {
        .grid = {blocks_of(heads.num_heads + 2 * heads.kv.num_kv_heads, kWarps), num_rows},
        .block = {kThreads},
        .shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(heads.kv.head_dim),
        .overlaps_previous = true};
    if (!heads.norm_all_heads) {
      launch("finish_heads", stream, finish_heads_kernel<T>, config, params);
      return;
    }
    config.grid = {num_rows};
    launch("norm_all_heads", stream, norm_all_heads_kernel<T>, config, params);
    return;
  }
  launch("finish_sums", stream, finish_sums_kernel<T>,
         {.grid = {blocks_of(params.num_tiles, kWarps), blocks_of(params.num_rows, kFinishRows)},
          .block = {kThreads},
          .shared_bytes = sizeof(float) * kWarps * kFinishFloats,
          .overlaps_previous = true},
         params);
}

}  // namespace

void unpack_weights(Stream& stream, const UnpackParams& params) {
  launch("unpack_weights", stream, unpack_kernel,
         {.grid = {blocks_of(params.num_k_blocks, kWarps * kUnpackBlocks),
                   static_cast<unsigned>(params.num_tiles)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void finish_sums(Stream& stream, const FinishSumsParams& params) {
  if (params.act_dtype == DType::kBF16) {
    finish_sums_of<Bf16>(stream, params);
  } else {
    finish_sums_of<Half>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
