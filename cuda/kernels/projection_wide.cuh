// Projections of so many rows that arithmetic bounds them, on compute capability 9.0: wgmma with
// weights in registers, which a lane loads as its part of a packed block, and rows in shared
// memory.
//
// A warpgroup has 64 outputs, one tile per warp. A stage is 64 inputs: rows come by cp.async two
// stages ahead, weights into registers one stage ahead, and the wgmma instructions of one stage run
// while those of the next are prepared. Sums over all k stay in the accumulators, so they may
// differ from the other kernels' in the last bits; they do not depend on other rows either.
#pragma once

#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/projection_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// The shape of a block. kRows is one of kWideRows.
template <int kRows>
struct WideBlock {
  static constexpr int kTiles = wide_tiles(kRows);
  static constexpr int kThreads = kTiles * kWarpSize;
  static constexpr int kDepth = 4;            // stages of rows
  static constexpr int kStageRowBytes = 128;  // of one row
  static constexpr int kStageBytes = kRows * kStageRowBytes;
  static constexpr int kSharedBytes = kDepth * kStageBytes;
  static_assert(kSharedBytes >= kTiles * kRows * kTileOutputs * 4);
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Exchanges registers between lanes whose indices differ in one bit, `distance`: the lane with the
// bit gives its `low` for the other's `high`.
__device__ __forceinline__ void exchange(uint32_t& low, uint32_t& high, int distance) {
  const bool has_bit = (threadIdx.x & distance) != 0;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, has_bit ? low : high, distance);
  low = has_bit ? other : low;
  high = has_bit ? high : other;
}

// Lane 4g + t has pairs 2t and 2t + 1 of a wgmma's 8 pairs of inputs, and gets pairs t and t + 4.
__device__ __forceinline__ void spread_pairs(uint32_t& low, uint32_t& high) {
  exchange(low, high, 1);
  exchange(low, high, 2);
}

// Grid: [row tiles, blocks of tiles]. Row tiles vary fastest: they share weights in L2.
template <class T, int kRows>
class WideRows {
 public:
  __device__ __forceinline__ WideRows(const ProjectionParams& params, unsigned char* shared)
      : params_(params),
        shared_(shared),
        lane_(threadIdx.x % kWarpSize),
        first_row_(blockIdx.x * kRows),
        first_tile_(blockIdx.y * Block::kTiles),
        tile_(first_tile_ + threadIdx.x / kWarpSize) {
    // Warps past the last tile repeat it; their sums are not stored.
    const int64_t tile = min(tile_, params.num_tiles - 1);
    weights_ = static_cast<const unsigned char*>(params.weights) +
               tile * params.num_k_blocks * Format::kBlockBytes;
  }

  __device__ __forceinline__ void run() {
    Weights weights[kStageBlocks];
    load_weights(weights, 0);
    ptx::wait_for_previous();
    ptx::let_next_start();
#pragma unroll
    for (int stage = 0; stage < kDepth / 2; ++stage) copy_rows(stage);

    float sums[kRows / 2];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = 0.0f;
    uint32_t operands[2][kOperands][4];  // a stage's are read while the next are written
    const int num_stages = (params_.num_k_blocks + kStageBlocks - 1) / kStageBlocks;
#pragma unroll 1
    for (int pair = 0; pair < num_stages; pair += 2) {  // a stage past the end is zeros
#pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        const int stage = pair + turn;
        arrange(weights, operands[turn]);
        load_weights(weights, stage + 1);
        ptx::copy_async_wait<kDepth / 2 - 1>();
        ptx::fence_async_proxy();
        __syncthreads();  // the stage has arrived for all, and all are done with the one 2 before
        multiply(sums, operands[turn], stage);
        copy_rows(stage + kDepth / 2);
        ptx::wgmma_wait<1>();
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    ptx::copy_async_wait<0>();
    __syncthreads();  // the rows' memory is free
    finish(sums);
  }

 private:
  using Format = ActFormat<T>;
  using Weights = typename Format::Weights;
  using Block = WideBlock<kRows>;
  static constexpr int kDepth = Block::kDepth;
  static constexpr int kStageBlocks = 2;  // k blocks
  static constexpr int kOperands = 2 * kStageBlocks;

  __device__ __forceinline__ void load_weights(Weights (&to)[kStageBlocks], int stage) const {
#pragma unroll
    for (int i = 0; i < kStageBlocks; ++i) {
      const int block = stage * kStageBlocks + i;
      to[i] = {};
      if (block < params_.num_k_blocks) {
        to[i] = Format::load_weights(weights_ + int64_t{block} * Format::kBlockBytes, lane_);
      }
    }
  }

  // A lane has 4 consecutive inputs of a wgmma's 16, but wgmma wants 2 from each half of them, as
  // the rows in shared memory have their natural order.
  static __device__ __forceinline__ void arrange(const Weights (&weights)[kStageBlocks],
                                                 uint32_t (&operands)[kOperands][4]) {
#pragma unroll
    for (int i = 0; i < kStageBlocks; ++i) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint4 own = weights[i].steps[step];
        spread_pairs(own.x, own.z);  // of output g
        spread_pairs(own.y, own.w);  // of output g + 8
        uint32_t (&operand)[4] = operands[2 * i + step];
        operand[0] = own.x;
        operand[1] = own.y;
        operand[2] = own.z;
        operand[3] = own.w;
      }
    }
  }

  __device__ __forceinline__ unsigned char* stage_rows(int stage) const {
    return shared_ + stage % kDepth * Block::kStageBytes;
  }

  // Copies two records of every row, side by side and swizzled (wgmma_tile). Rows and inputs past
  // the end are zeros.
  __device__ __forceinline__ void copy_rows(int stage) const {
    constexpr int kPieces = Block::kStageRowBytes / 16;
    constexpr int kRowStride = Block::kThreads / kPieces;
    static_assert(kRowStride % 8 == 0);
    const int piece = threadIdx.x % kPieces;
    const int row = threadIdx.x / kPieces;
    const int64_t row_bytes = int64_t{params_.num_k_blocks} * kRecordBytes;
    const int64_t offset = int64_t{stage} * Block::kStageRowBytes + piece * 16;
    const int num_rows = offset < row_bytes ? params_.rows.num_rows - first_row_ - row : 0;
    const unsigned char* records = static_cast<const unsigned char*>(params_.records);
    const unsigned char* source = records + (first_row_ + row) * row_bytes + offset;
    unsigned char* to = stage_rows(stage) + row * Block::kStageRowBytes + (piece ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < kRows; i += kRowStride) {
      const bool valid = i < num_rows;
      ptx::copy_async_16(to + i * Block::kStageRowBytes, valid ? source : records, valid);
      source += kRowStride * row_bytes;
    }
    ptx::copy_async_commit();
  }

  __device__ __forceinline__ void multiply(float (&sums)[kRows / 2],
                                           const uint32_t (&operands)[kOperands][4],
                                           int stage) const {
    const uint64_t rows = ptx::wgmma_tile(stage_rows(stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kOperands; ++step) {
      ptx::wgmma_m64k16<T, kRows>(sums, operands[step], ptx::wgmma_advance(rows, step));
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void finish(const float (&sums)[kRows / 2]) const {
    const int end_row = min(first_row_ + kRows, params_.rows.num_rows);
    if (tile_ < params_.num_tiles) {
      TileSums<kRows / 8> total;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) total.values[i / 4][i % 4] = sums[i];
      float* sums_of_rows =
          reinterpret_cast<float*>(shared_) + (tile_ - first_tile_) * (kRows * kTileOutputs);
      total.store(params_.finish, tile_, sums_of_rows);
      finish_tile<T>(params_.finish, tile_, first_row_, end_row - first_row_, sums_of_rows);
    }
    if (params_.finish.kind == Finish::kHeads) {
      const Range tiles = {first_tile_, min(first_tile_ + Block::kTiles, params_.num_tiles)};
      __syncthreads();
      finish_heads<T, Block::kThreads>(
          params_.finish, tiles, blockIdx.x, first_row_, end_row, reinterpret_cast<float*>(shared_),
          [&](int row) { return position_of(params_.finish.heads, row); });
    }
  }

  const ProjectionParams& params_;
  unsigned char* shared_;
  const int lane_;
  const int first_row_;
  const int first_tile_;  // of the block
  const int tile_;        // of the warp
  const unsigned char* weights_;
};

#endif

template <class T, int kRows>
__global__ void __launch_bounds__(WideBlock<kRows>::kThreads, kRows == kWideRows[0] ? 3 : 1)
    wide_rows_kernel(const ProjectionParams params) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SPECDEC_SHARED_BYTES(shared);
  WideRows<T, kRows>(params, shared).run();
#endif
}

template <class T, int kRows>
void launch_wide_rows(Stream& stream, const ProjectionParams& params) {
  using Block = WideBlock<kRows>;
  int64_t shared_bytes = Block::kSharedBytes;
  if (params.finish.kind == Finish::kHeads) {
    const int64_t head_bytes =
        heads_scratch_bytes(Block::kThreads / kWarpSize, params.finish.heads.kv.head_dim);
    shared_bytes = shared_bytes > head_bytes ? shared_bytes : head_bytes;
  }
  const unsigned row_tiles = (params.rows.num_rows + kRows - 1) / kRows;
  const unsigned tile_blocks = (params.num_tiles + Block::kTiles - 1) / Block::kTiles;
  launch("wide_rows", stream, wide_rows_kernel<T, kRows>,
         {.grid = {row_tiles, tile_blocks},
          .block = {Block::kThreads},
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
