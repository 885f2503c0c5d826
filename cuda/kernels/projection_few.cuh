// Products of few rows: the weights are read once, as one stream.
//
// A block has a run of consecutive tiles; its eight warps take a slice of k each and meet in shared
// memory at the end of every tile, where one of them (in turn) folds the slices and finishes
// the tile while the others go on. Weights go straight to registers, through a ring of
// kStages stages of 2 KB a warp: 48 or 64 KB in flight a block, refilled stage by stage, across the
// ends of tiles, so the stream does not pause. The first stages are under way before the block
// waits for the kernel before it. No more stages, because a warp has six scoreboards to wait on and
// the rows' loads need one too.
//
// That early start needs registers: the blocks of one such kernel take most of a multiprocessor's,
// so that the next begins there as they end, block by block. It is whole behind small kernels, such
// as the joining one of attention.
#pragma once

#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/projection_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Part `index` of `count` nearly equal parts of [0, total).
__device__ __forceinline__ Range equal_part(int total, int index, int count) {
  return {static_cast<int>(static_cast<int64_t>(total) * index / count),
          static_cast<int>(static_cast<int64_t>(total) * (index + 1) / count)};
}

// kTiles: tiles a warp works on together, so that a row's record is read once for them.
// kColumns: tiles of 8 rows. kFused: the block prepares the rows itself, in shared memory.
template <class Format, int kTiles, int kColumns, bool kFused>
class FewRows {
 public:
  static constexpr int kBlocksPerSm = few_rows_blocks_per_sm(kColumns * 8, kFused, kTiles);
  static constexpr int kStages = !kFused && kBlocksPerSm == 2 ? 3 : Format::kMaxStages;
  static constexpr int kStageBlocks = 2 / kTiles;  // k blocks of each tile
  static constexpr int kChunk = kStages * kStageBlocks;
  static constexpr int64_t kExchangeBytes = few_rows_exchange_bytes(kColumns * 8, kTiles);

  __device__ __forceinline__ FewRows(const ProductParams& params, unsigned char* shared)
      : params_(params),
        exchange_(reinterpret_cast<float4*>(shared)),
        rows_(shared + kExchangeBytes),
        prepared_step_(params.rows.num_rows * Format::kRecordBytes),
        lane_(threadIdx.x % kWarpSize),
        warp_(threadIdx.x / kWarpSize),
        blocks_(slice_blocks(warp_, params.slices)),
        tiles_(equal_part(params.num_tiles, blockIdx.x, gridDim.x)) {}

  __device__ __forceinline__ void run() {
    Weights weights[kChunk][kTiles];
    Inputs inputs[kChunk][kColumns];
    Chunk next = chunk_at(tiles_.begin, blocks_.begin);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) load_weights(weights[i], next, i);
    ptx::wait_for_previous();
    ptx::let_next_start();  // its first weights may come while this kernel's last blocks work
    if constexpr (kFused) {
      prepare();
    } else {
      find_rows();
#pragma unroll
      for (int i = 0; i < kChunk; ++i) load_inputs(inputs[i], next, i);
    }
    int step = 0;
    for (int tile = tiles_.begin; tile < tiles_.end; tile += kTiles, ++step) {
      TileSums<kColumns> sums[kTiles];
      int block = blocks_.begin;
      do {
        const bool tile_goes_on = block + kChunk < blocks_.end;
        next =
            tile_goes_on ? chunk_at(tile, block + kChunk) : chunk_at(tile + kTiles, blocks_.begin);
        const int count = blocks_.end - block;
        const unsigned char* prepared_records = prepared(lane_ / 4, block);
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
          for (int i = stage * kStageBlocks; i < (stage + 1) * kStageBlocks; ++i) {
            if (i >= count) continue;
            if constexpr (kFused) {
              load_prepared(inputs[i], prepared_records + i * prepared_step_);
            }
            multiply(sums, weights[i], inputs[i]);
          }
#pragma unroll
          for (int i = stage * kStageBlocks; i < (stage + 1) * kStageBlocks; ++i) {
            load_weights(weights[i], next, i);
            if constexpr (!kFused) load_inputs(inputs[i], next, i);
          }
        }
        block += kChunk;
      } while (block < blocks_.end);
      meet(sums, tile, step);
    }
    if (params_.finish.kind == Finish::kHeads) {
      __syncthreads();  // the exchange memory is free
      finish_heads<T, kRowThreads>(params_.finish, tiles_, 0, 0, params_.rows.num_rows,
                                   reinterpret_cast<float*>(exchange_));
    }
  }

 private:
  using T = typename Format::Element;
  using Weights = typename Format::Weights;
  using Inputs = typename Format::Inputs;

  // Up to kChunk consecutive k blocks of the tiles a warp works on.
  struct Chunk {
    const unsigned char* weights[kTiles];
    int first_block;
    int count;  // may be more than kChunk; 0 or less: none
  };
  __device__ __forceinline__ Chunk chunk_at(int tile, int block) const {
    Chunk chunk;
    chunk.first_block = block;
    chunk.count = tile < tiles_.end ? blocks_.end - block : 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      // A last tile that is alone is read twice rather than have a loop of its own.
      const int64_t index = min(tile + i, tiles_.end - 1);
      chunk.weights[i] = static_cast<const unsigned char*>(params_.weights) +
                         (index * params_.num_k_blocks + block) * Format::kBlockBytes;
    }
    return chunk;
  }

  __device__ __forceinline__ void load_weights(Weights (&to)[kTiles], const Chunk& chunk,
                                               int i) const {
    if (i >= chunk.count) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      to[tile] = Format::load_weights(chunk.weights[tile] + i * Format::kBlockBytes, lane_);
    }
  }

  __device__ __forceinline__ void load_inputs(Inputs (&to)[kColumns], const Chunk& chunk,
                                              int i) const {
    if (i >= chunk.count) return;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      to[column] = Format::no_inputs();
      if (records_[column] == nullptr) continue;
      to[column] = Format::load_inputs(
          records_[column] + (chunk.first_block + i) * Format::kRecordBytes, lane_ % 4);
    }
  }

  __device__ __forceinline__ void multiply(TileSums<kColumns> (&sums)[kTiles],
                                           const Weights (&weights)[kTiles],
                                           const Inputs (&inputs)[kColumns]) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Format::multiply(sums[tile].values[column], weights[tile], inputs[column]);
      }
    }
  }

  // Prepared rows are [k block][row] records: what a warp reads is one piece.
  __device__ __forceinline__ unsigned char* prepared(int row, int k_block) const {
    return rows_ + k_block * prepared_step_ + row * Format::kRecordBytes;
  }
  // `record` of row lane / 4.
  __device__ __forceinline__ void load_prepared(Inputs (&to)[kColumns],
                                                const unsigned char* record) const {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      to[column] = Format::no_inputs();
      if (column * 8 + lane_ / 4 >= params_.rows.num_rows) continue;
      to[column] = Format::load_inputs(record + column * (8 * Format::kRecordBytes), lane_ % 4);
    }
  }
  __device__ __forceinline__ void prepare() {
    prepare_rows<Format>(params_.rows, 0, params_.rows.num_rows,
                         reinterpret_cast<float*>(exchange_),
                         [&](int row, int k_block) { return prepared(row, k_block); });
    __syncthreads();
  }

  __device__ __forceinline__ void find_rows() {
    const unsigned char* base = static_cast<const unsigned char*>(params_.records);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int row = column * 8 + lane_ / 4;
      records_[column] = nullptr;
      if (row < params_.rows.num_rows) {
        records_[column] =
            base + source_row(params_.rows, row) * params_.num_k_blocks * Format::kRecordBytes;
      }
    }
  }

  // Slices meet. Memory is used in turns, so that one barrier a step is enough: who writes a turn
  // again has passed the barrier that its readers came to after reading.
  __device__ __forceinline__ void meet(const TileSums<kColumns> (&sums)[kTiles], int tile,
                                       int step) {
    float4* turn = exchange_ + step % 2 * (kNumSlices * kTiles * kColumns * kWarpSize);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        turn[((warp_ * kTiles + i) * kColumns + column) * kWarpSize + lane_] = sums[i].part(column);
      }
    }
    __syncthreads();
    const int mine = (warp_ + kNumSlices - step * kTiles % kNumSlices) % kNumSlices;
    if (mine >= kTiles || tile + mine >= tiles_.end) return;
    const auto part = [&](int slice, int column) {
      return turn[((slice * kTiles + mine) * kColumns + column) * kWarpSize + lane_];
    };
    // Where slice 0 was, which nobody else reads.
    float* sums_of_rows = reinterpret_cast<float*>(turn + mine * kColumns * kWarpSize);
    const int num_rows = params_.rows.num_rows;
    const FoldOrder& plan = params_.slices.plan;
    if (plan.num_steps == kNumSlices && plan.num_left == 1) {
      TileSums<kColumns> total;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        total.set(column,
                  fold_slices<kNumSlices>(0, [&](int slice) { return part(slice, column); }));
      }
      return finish_plane<T>(params_, 0, tile + mine, 0, num_rows, total, sums_of_rows);
    }
    FoldStack<kColumns> stack;
#pragma unroll 1
    for (int slice = 0; slice < plan.num_steps; ++slice) {
      TileSums<kColumns> sum;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) sum.set(column, part(slice, column));
      stack.push(plan.step(slice), sum);
    }
#pragma unroll 1
    for (int plane = 0; plane < plan.num_left; ++plane) {
      finish_plane<T>(params_, plane, tile + mine, 0, num_rows, stack.at(plane), sums_of_rows);
    }
  }

  const ProductParams& params_;
  float4* exchange_;         // [2 turns][slices][kTiles][kColumns][lane], or scratch
  unsigned char* rows_;      // fused
  const int prepared_step_;  // bytes from one k block to the next
  const int lane_;
  const int warp_;
  const Range blocks_;                      // of k: the warp's slice
  const Range tiles_;                       // the block's
  const unsigned char* records_[kColumns];  // of the lane's rows; null for none
};

template <class Format, int kTiles, int kColumns, bool kFused>
__global__ void __launch_bounds__(kRowThreads,
                                  FewRows<Format, kTiles, kColumns, kFused>::kBlocksPerSm)
    few_rows_kernel(const ProductParams params) {
  SPECDEC_SHARED_BYTES(shared);
  FewRows<Format, kTiles, kColumns, kFused>(params, shared).run();
}

template <class Format, int kTiles, int kColumns>
void launch_few_rows(Stream& stream, const ProductParams& params) {
  const int64_t head_bytes = params.finish.kind == Finish::kHeads
                                 ? int64_t{kRowWarps} * params.finish.heads.kv.head_dim * 4
                                 : 0;
  const int64_t exchange_bytes = few_rows_exchange_bytes(params.rows.num_rows, kTiles);
  const int64_t rows_bytes = params.plan.fused_rows ? int64_t{params.rows.num_rows} *
                                                          params.num_k_blocks * Format::kRecordBytes
                                                    : 0;
  const int64_t shared_bytes =
      exchange_bytes + rows_bytes > head_bytes ? exchange_bytes + rows_bytes : head_bytes;
  const LaunchConfig config = {.grid = {static_cast<unsigned>(params.plan.num_blocks)},
                               .block = {kRowThreads},
                               .shared_bytes = static_cast<size_t>(shared_bytes),
                               .overlaps_previous = true};
  launch("few_rows", stream,
         params.plan.fused_rows ? few_rows_kernel<Format, kTiles, kColumns, true>
                                : few_rows_kernel<Format, kTiles, kColumns, false>,
         config, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
