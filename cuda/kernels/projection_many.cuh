// Projections of more than kFewRows rows. A block has 8 tiles of weights, one per warp, and
// kColumns tiles of 8 rows, which its warps share in shared memory. Weights go straight to
// registers, through a ring of kRing k blocks; rows come by cp.async, through kDepth stages.
//
// A warp folds the slices of k as it goes. Where there are too few tiles to fill the GPU (kSplit)
// every slice has a block of its own: blocks leave their sums in memory, and the block that comes
// last folds the slices, in the same order.
#pragma once

#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/projection_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Grid: [row tiles, blocks of tiles, slices or 1]. Row tiles vary fastest: they share weights in
// L2.
template <class Format, int kColumns, bool kSplit>
class ManyRows {
 public:
  static constexpr int kRing = 4;   // k blocks of a stage of rows, and of the ring
  static constexpr int kDepth = 3;  // stages of rows
  static constexpr int kRows = kColumns * 8;
  static constexpr int kStageBytes = kRing * kRows * kRecordBytes;
  static constexpr int kTotalBytes = kManyRowsTiles * kRows * kTileOutputs * 4;
  static constexpr int kSharedBytes = kDepth * kStageBytes;
  static_assert(kDepth * kStageBytes >= kTotalBytes);
  static constexpr int64_t kPartialFloats = partial_floats(kColumns);

  __device__ __forceinline__ ManyRows(const ProjectionParams& params, unsigned char* shared)
      : params_(params),
        shared_(shared),
        lane_(threadIdx.x % kWarpSize),
        warp_(threadIdx.x / kWarpSize),
        first_row_(blockIdx.x * kRows),
        first_tile_(blockIdx.y * kManyRowsTiles),
        blocks_(kSplit ? slice_blocks(blockIdx.z, params.slices) : Range{0, params.num_k_blocks}),
        table_(params, Format::kBlockBytes) {}

  __device__ __forceinline__ void run() {
    Weights weights[kRing];
    // Warps past the last tile repeat it; their sums are not stored.
    const int64_t tile = min(first_tile_ + warp_, params_.num_tiles - 1);
    const unsigned char* blocks = static_cast<const unsigned char*>(params_.weights) +
                                  tile * params_.num_k_blocks * Format::kBlockBytes;
    const auto load_weights = [&](Weights& to, int block) {
      if (block >= blocks_.end) return;
      to = Format::load_weights(blocks + int64_t{block} * Format::kBlockBytes, lane_);
    };
#pragma unroll
    for (int i = 0; i < kRing; ++i) load_weights(weights[i], blocks_.begin + i);
    if (starts_next_early(params_.finish.kind)) ptx::let_next_start();
    ptx::wait_for_previous();
    ptx::let_next_start();
#pragma unroll
    for (int stage = 0; stage < kDepth - 1; ++stage) copy_rows(stage);

    TileSums<kColumns> sums;
    FoldStack<kColumns> stack;
    const DeviceFoldOrder& order = params_.slices.fold_order;
    int slice = 0;
    int slice_end = params_.slices.bounds[1];
    const int num_stages = (blocks_.end - blocks_.begin + kRing - 1) / kRing;
    for (int stage = 0; stage < num_stages; ++stage) {
      ptx::copy_async_wait<kDepth - 2>();
      __syncthreads();  // the stage has arrived for all, and the one before it is free
      copy_rows(stage + kDepth - 1);
#pragma unroll
      for (int i = 0; i < kRing; ++i) {
        const int block = blocks_.begin + stage * kRing + i;
        if (block >= blocks_.end) continue;
        if constexpr (!kSplit) {
          while (block == slice_end) {  // repeats for empty slices
            stack.push(order.entry(slice), sums);
            sums = {};
            slice_end = params_.slices.bounds[++slice + 1];
          }
        }
        multiply(sums, weights[i], stage, i);
        load_weights(weights[i], block + kRing);
      }
    }
    ptx::copy_async_wait<0>();
    if constexpr (kSplit) {
      if (!meet(sums, stack)) return;
    } else {
      for (; slice < order.num_entries; ++slice) {
        stack.push(order.entry(slice), sums);
        sums = {};
      }
    }
    __syncthreads();  // the rows' memory is free
    if (first_tile_ + warp_ < params_.num_tiles) {
      float* sums_of_rows = reinterpret_cast<float*>(shared_) + warp_ * (kRows * kTileOutputs);
      const int num_rows = min(kRows, params_.rows.num_rows - first_row_);
      if (order.num_left == 1) {
        stack.at(0).store(params_.finish, first_tile_ + warp_, sums_of_rows);
        finish_tile<T>(params_.finish, first_tile_ + warp_, first_row_, num_rows, sums_of_rows);
      } else {
#pragma unroll 1
        for (int plane = 0; plane < order.num_left; ++plane) {
          store_plane(params_, plane, first_tile_ + warp_, first_row_, num_rows, stack.at(plane),
                      sums_of_rows);
        }
      }
    }
    if (params_.finish.kind == Finish::kHeads) {
      const Range tiles = {first_tile_, min(first_tile_ + kManyRowsTiles, params_.num_tiles)};
      __syncthreads();
      finish_heads<T, kRowThreads>(params_.finish, tiles, blockIdx.x, first_row_,
                                   min(first_row_ + kRows, params_.rows.num_rows),
                                   reinterpret_cast<float*>(shared_),
                                   [&](int row) { return position_of(params_.finish.heads, row); });
    }
  }

 private:
  using T = typename Format::Element;
  using Weights = typename Format::Weights;

  // Records of a stage lie [k block][row], so that a warp reads contiguous memory.
  __device__ __forceinline__ unsigned char* record(int stage, int block, int row) const {
    return shared_ + stage % kDepth * kStageBytes + (block * kRows + row) * kRecordBytes;
  }

  __device__ __forceinline__ void copy_rows(int stage) {
    constexpr int kPieces = kRecordBytes / 16;
    constexpr int kRowPieces = kRing * kPieces;  // of a row, side by side
    constexpr int kStagePieces = kRows * kRowPieces;
    const int first_block = blocks_.begin + stage * kRing;
    // Rolled: addresses worked out in advance would take registers that the sums need.
#pragma unroll 1
    for (int i = threadIdx.x; i < kStagePieces; i += kRowThreads) {
      const int row = i / kRowPieces;
      const int block = i % kRowPieces / kPieces;
      const bool valid =
          first_row_ + row < params_.rows.num_rows && first_block + block < blocks_.end;
      const int64_t index =
          valid ? static_cast<int64_t>(first_row_ + row) * params_.num_k_blocks + first_block : 0;
      ptx::copy_async_16(record(stage, block, row) + shared_offset(row, i % kPieces * 16),
                         static_cast<const unsigned char*>(params_.records) + index * kRecordBytes +
                             (valid ? i % kRowPieces * 16 : 0),
                         valid);
    }
    ptx::copy_async_commit();
  }

  __device__ __forceinline__ void multiply(TileSums<kColumns>& sums, const Weights& weights,
                                           int stage, int block) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      Format::multiply(sums.values[column], weights,
                       load_shared_inputs(record(stage, block, column * 8 + lane_ / 4), lane_),
                       table_);
    }
  }

  // Stores a slice's sums. Returns true in the block that comes last, with all slices folded.
  __device__ __forceinline__ bool meet(const TileSums<kColumns>& sums, FoldStack<kColumns>& stack) {
    __shared__ int is_last;
    const int64_t cell = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    float4* partials =
        reinterpret_cast<float4*>(params_.partials + cell * kNumSlices * kPartialFloats);
    const auto part = [&](int slice, int column) {
      return partials + ((slice * kManyRowsTiles + warp_) * kColumns + column) * kWarpSize + lane_;
    };
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      *part(blockIdx.z, column) = sums.part(column);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = ptx::add_acquire_release(params_.partial_arrivals + cell, 1u) == gridDim.z - 1;
      if (is_last) params_.partial_arrivals[cell] = 0;
    }
    __syncthreads();
    if (!is_last) return false;
#pragma unroll 1
    for (int slice = 0; slice < params_.slices.fold_order.num_entries; ++slice) {
      TileSums<kColumns> sum;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) sum.set(column, *part(slice, column));
      stack.push(params_.slices.fold_order.entry(slice), sum);
    }
    return true;
  }

  const ProjectionParams& params_;
  unsigned char* shared_;
  const int lane_;
  const int warp_;
  const int first_row_;
  const int first_tile_;
  const Range blocks_;  // of k
  const typename Format::Table table_;
};

template <class Format, int kColumns, bool kSplit>
__global__ void __launch_bounds__(kRowThreads, Format::kManyRowsBlocksPerSm)
    many_rows_kernel(const ProjectionParams params) {
  SPECDEC_SHARED_BYTES(shared);
  ManyRows<Format, kColumns, kSplit>(params, shared).run();
}

template <class Format, int kColumns>
void launch_many_rows(Stream& stream, const ProjectionParams& params) {
  constexpr int kRows = kColumns * 8;
  const unsigned row_tiles = (params.rows.num_rows + kRows - 1) / kRows;
  const unsigned tile_blocks = (params.num_tiles + kManyRowsTiles - 1) / kManyRowsTiles;
  const bool split = params.tiling.split_slices;
  int64_t shared_bytes = split ? ManyRows<Format, kColumns, true>::kSharedBytes
                               : ManyRows<Format, kColumns, false>::kSharedBytes;
  if (params.finish.kind == Finish::kHeads) {
    const int64_t head_bytes = heads_scratch_bytes(kRowWarps, params.finish.heads.kv.head_dim);
    shared_bytes = shared_bytes > head_bytes ? shared_bytes : head_bytes;
  }
  const LaunchConfig config = {
      .grid = {row_tiles, tile_blocks,
               split ? static_cast<unsigned>(params.slices.fold_order.num_entries) : 1u},
      .block = {kRowThreads},
      .shared_bytes = static_cast<size_t>(shared_bytes),
      .overlaps_previous = true,
      .lets_next_start_early = starts_next_early(params.finish.kind)};
  launch(
      "many_rows", stream,
      split ? many_rows_kernel<Format, kColumns, true> : many_rows_kernel<Format, kColumns, false>,
      config, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
