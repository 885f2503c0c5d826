// Projections of few rows: the weights are read once, as one stream.
//
// An SM has one block, with a run of consecutive tiles. The block's eight warps take a slice of k
// each and meet in shared memory at the end of every tile, where one of them, in turn, folds the
// slices and finishes the tile while the others go on. Weights go straight to registers, through a
// ring of kStages stages of 2 KB per warp: 64 KB in flight per block, refilled stage by stage and
// across the ends of tiles, so the stream does not pause. No more stages, because a warp has six
// scoreboards to wait on and the rows' loads need one too.
//
// A block takes at most half of an SM's registers, so a block of the next such kernel fits beside
// it. Before this kernel ends, that block has its first stages in flight and prefetches the weights
// after them into L2.
#pragma once

#include "core/check.h"
#include "cuda/kernels/projection_best.cuh"
#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/projection_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Part `index` of `count` nearly equal parts of [0, total). launch_few_rows checks that 32 bits are
// enough; a 64-bit division takes many instructions.
__device__ __forceinline__ Range equal_part(uint32_t total, uint32_t index, uint32_t count) {
  return {static_cast<int>(total * index / count), static_cast<int>(total * (index + 1) / count)};
}

// The compile-time choices of a kernel, all of which follow from ProjectionParams. They make a
// kernel only a few KB long: a layer's kernels have to fit an instruction cache together.
//   kIsPartial: sums are not folded to one (FinishParams::plane_stride)
//   kTiles: tiles that a warp works on together, to read a row's record once for them
//   kColumns: columns of 8 rows
template <Finish kFinish, bool kIsPartial, RowSource kSource, int kTiles, int kColumns,
          FinishVariant kVariant>
struct FewRowsKind {
  static constexpr Finish finish = kFinish;
  static constexpr bool is_partial = kIsPartial;
  static constexpr RowSource source = kSource;
  static constexpr int tiles = kTiles;
  static constexpr int columns = kColumns;
  static constexpr bool has_layer_rows = kVariant == FinishVariant::kLayerRows;
  static constexpr FinishVariant variant = has_layer_rows ? FinishVariant::kAny : kVariant;
  static constexpr RowsKind rows = has_layer_rows ? RowsKind::kLayer : RowsKind::kPlain;
};

// Bytes from the start of dynamic shared memory to the data behind the prepared rows, and behind
// the scratch of heads, which uses the same memory later. They follow from kernel parameters alone,
// so they take no register while the weights stream through.
template <class Kind>
__host__ __device__ __forceinline__ int64_t few_rows_tail_offset(const ProjectionParams& params) {
  constexpr int64_t kExchange = few_rows_exchange_bytes(Kind::columns * 8, Kind::tiles);
  int64_t offset = kExchange;
  if constexpr (Kind::source == RowSource::kShared) {
    offset += int64_t{params.rows.num_rows} * params.num_k_blocks * kRecordBytes;
  }
  if constexpr (Kind::finish == Finish::kHeads) {
    const int64_t scratch = heads_scratch_bytes(kRowWarps, params.finish.heads.kv.head_dim);
    if (scratch > offset) offset = scratch;
  }
  return offset;
}

template <class Format, class Kind>
class FewRows {
 public:
  static constexpr int kTiles = Kind::tiles;
  static constexpr int kColumns = Kind::columns;
  static constexpr bool kIsShared = Kind::source == RowSource::kShared;
  // kStore reads the old output ahead; with 16 rows the registers for that come out of the ring of
  // weights.
  static constexpr bool kIsShort = kColumns == 2 && Kind::finish == Finish::kStore;
  static constexpr int kStages = kIsShort ? 3 : Format::kMaxStages;
  static constexpr int kStageBlocks = 2 / kTiles;  // k blocks of each tile
  static constexpr int kChunk = kStages * kStageBlocks;
  // Stages of the ring of rows, which come from L2: two, or one where registers are short. If two
  // do not divide the ring of weights, as many as that has.
  static constexpr int kInputStages = kColumns == 2 ? 1 : kStages % 2 == 0 ? 2 : kStages;
  static constexpr int kInputBlocks = kIsShared ? 1 : kInputStages * kStageBlocks;
  static constexpr int64_t kExchangeBytes = few_rows_exchange_bytes(kColumns * 8, kTiles);
  static constexpr int64_t kPrefetchBytes = 128 * 1024;  // of the block's weights, to L2

  __device__ __forceinline__ FewRows(const ProjectionParams& params, unsigned char* shared)
      : params_(params),
        exchange_(reinterpret_cast<float4*>(shared)),
        rows_(shared + kExchangeBytes),
        prepared_stride_(params.rows.num_rows * kRecordBytes),
        lane_(threadIdx.x % kWarpSize),
        warp_(threadIdx.x / kWarpSize),
        blocks_(slice_blocks(warp_, params.slices)),
        tiles_(equal_part(params.num_tiles, blockIdx.x, gridDim.x)),
        table_(params, Format::kBlockBytes) {}

  __device__ __forceinline__ void run() {
    Weights weights[kChunk][kTiles];
    Inputs inputs[kInputBlocks][kColumns];
    if constexpr (starts_next_early(Kind::finish)) ptx::let_next_start();
    Chunk next = chunk_at(tiles_.begin, blocks_.begin);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) load_weights(weights[i], next, i);
    prefetch();
    ptx::wait_for_previous();
    if constexpr (!starts_next_early(Kind::finish)) ptx::let_next_start();
    if constexpr (Kind::finish == Finish::kHeads) load_positions();
    if constexpr (Kind::finish == Finish::kBest) clear_keys();
    if constexpr (kIsShared) {
      prepare();
    } else {
      if constexpr (Kind::source == RowSource::kExchanged) exchange_rows();
      find_rows();
#pragma unroll
      for (int i = 0; i < kInputBlocks; ++i) load_inputs(inputs[i], next, i);
    }
    int round = 0;
#pragma unroll 1
    for (int tile = tiles_.begin; tile < tiles_.end; tile += kTiles, ++round) {
      TileSums<kColumns> sums[kTiles];
      int block = blocks_.begin;
#pragma unroll 1
      do {
        const Chunk here = {{}, block, blocks_.end - block};
        const bool tile_goes_on = block + kChunk < blocks_.end;
        next =
            tile_goes_on ? chunk_at(tile, block + kChunk) : chunk_at(tile + kTiles, blocks_.begin);
        const unsigned char* prepared_records = prepared(lane_ / 4, block);
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
          for (int i = stage * kStageBlocks; i < (stage + 1) * kStageBlocks; ++i) {
            if (i >= here.count) continue;
            if constexpr (kIsShared) {
              load_prepared(inputs[0], prepared_records + i * prepared_stride_);
            }
            multiply(sums, weights[i], inputs[i % kInputBlocks]);
          }
#pragma unroll
          for (int i = stage * kStageBlocks; i < (stage + 1) * kStageBlocks; ++i) {
            load_weights(weights[i], next, i);
            if constexpr (!kIsShared) {
              const int ahead = i + kInputBlocks;
              load_inputs(inputs[i % kInputBlocks], ahead < kChunk ? here : next, ahead % kChunk);
            }
          }
        }
        block += kChunk;
      } while (block < blocks_.end);
      meet(sums, tile, round);
    }
    if constexpr (Kind::finish == Finish::kHeads) {
      __syncthreads();  // the exchange memory is free
      finish_heads<T, kRowThreads, Kind::variant>(
          params_.finish, tiles_, 0, 0, params_.rows.num_rows, reinterpret_cast<float*>(exchange_),
          [&](int row) { return position_in_shared(row); });
    } else if constexpr (Kind::finish == Finish::kBest) {
      find_best_of_blocks<kRowWarps>(params_.finish.best, params_.rows.num_rows, keys(),
                                     reinterpret_cast<int*>(exchange_));
    }
  }

 private:
  using T = typename Format::Element;
  using Weights = typename Format::Weights;

  // Up to kChunk consecutive k blocks of the tiles a warp works on.
  struct Chunk {
    const unsigned char* weights[kTiles];
    int first_block;
    int count;  // may exceed kChunk; 0 or less: none
  };
  __device__ __forceinline__ Chunk chunk_at(int tile, int block) const {
    Chunk chunk;
    chunk.first_block = block;
    chunk.count = tile < tiles_.end ? blocks_.end - block : 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      // A last single tile is read twice, which saves a separate loop.
      chunk.weights[i] = block_at(min(tile + i, tiles_.end - 1), block);
    }
    return chunk;
  }
  __device__ __forceinline__ const unsigned char* block_at(int64_t tile, int block) const {
    return static_cast<const unsigned char*>(params_.weights) +
           (tile * params_.num_k_blocks + block) * Format::kBlockBytes;
  }

  // Prefetches into L2 the first kPrefetchBytes of the block's weights, which are contiguous, and
  // the norm's weights.
  __device__ __forceinline__ void prefetch() const {
    if constexpr (Kind::source != RowSource::kRecords) {
      prefetch_part(params_.rows.weight, params_.rows.weight != nullptr ? params_.rows.dim * 4 : 0);
    }
    const int64_t size_bytes =
        int64_t{tiles_.end - tiles_.begin} * params_.num_k_blocks * Format::kBlockBytes;
    prefetch_part(block_at(tiles_.begin, 0), min(size_bytes, int64_t{kPrefetchBytes}));
  }
  static __device__ __forceinline__ void prefetch_part(const void* data, int64_t size_bytes) {
    constexpr int kPiece = 4096;
    const int64_t offset = static_cast<int64_t>(threadIdx.x) * kPiece;
    if (offset >= size_bytes) return;
    ptx::prefetch_to_l2(static_cast<const char*>(data) + offset,
                        static_cast<uint32_t>(min(size_bytes - offset, int64_t{kPiece})));
  }

  __device__ __forceinline__ void load_weights(Weights (&to)[kTiles], const Chunk& chunk,
                                               int i) const {
    if (i >= chunk.count) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      to[tile] = Format::load_weights(chunk.weights[tile] + i * Format::kBlockBytes, lane_);
    }
  }

  // Whether the lane has a row in that column: its pointer tells, or, with two tiles and two
  // columns, where every register counts, the number of rows.
  __device__ __forceinline__ bool has_record(int column) const {
    if constexpr (kTiles == 2 && kColumns == 2) {
      return column * 8 + lane_ / 4 < params_.rows.num_rows;
    }
    return records_[column] != nullptr;
  }
  __device__ __forceinline__ void load_inputs(Inputs (&to)[kColumns], const Chunk& chunk,
                                              int i) const {
    if (i >= chunk.count) return;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      to[column] = no_inputs();
      if (!has_record(column)) continue;
      to[column] = SPECDEC_TARGET::load_inputs(
          records_[column] + (chunk.first_block + i) * kRecordBytes, lane_);
    }
  }

  __device__ __forceinline__ void multiply(TileSums<kColumns> (&sums)[kTiles],
                                           const Weights (&weights)[kTiles],
                                           const Inputs (&inputs)[kColumns]) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Format::multiply(sums[tile].values[column], weights[tile], inputs[column], table_);
      }
    }
  }

  // Prepared rows are records [k block][row], so that a warp reads contiguous memory.
  __device__ __forceinline__ unsigned char* prepared(int row, int k_block) const {
    return rows_ + k_block * prepared_stride_ + row * kRecordBytes;
  }
  // `record` is that of row lane / 4.
  __device__ __forceinline__ void load_prepared(Inputs (&to)[kColumns],
                                                const unsigned char* record) const {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      to[column] = no_inputs();
      if (column * 8 + lane_ / 4 >= params_.rows.num_rows) continue;
      to[column] = load_shared_inputs(record + column * (8 * kRecordBytes), lane_);
    }
  }
  // Each block prepares every gridDim.x-th row for all blocks, then waits until all rows are
  // written.
  __device__ __forceinline__ void exchange_rows() {
    const RowsParams& rows = params_.rows;
    unsigned char* records = static_cast<unsigned char*>(params_.exchanged);
    uint32_t num_done = 0;
#pragma unroll 1
    for (int row = blockIdx.x; row < rows.num_rows; row += gridDim.x) {
      unsigned char* to = records + static_cast<int64_t>(row) * params_.num_k_blocks * kRecordBytes;
      prepare_rows<T, Kind::rows>(rows, row, 1, reinterpret_cast<float*>(exchange_),
                                  [to](int, int i) { return to + 2 * i; });
      ++num_done;
      __syncthreads();  // the records are written, and the scratch is free
    }
    if (threadIdx.x == 0) {
      uint32_t* num_ready = params_.exchange_counts;
      uint32_t* num_left = params_.exchange_counts + 1;  // blocks that have seen all rows
      if (num_done > 0) ptx::add_acquire_release(num_ready, num_done);
      volatile uint32_t* turns = reinterpret_cast<uint32_t*>(exchange_);
      *turns = 0;
      while (ptx::load_acquire(num_ready) != static_cast<uint32_t>(rows.num_rows)) {
        ptx::bound_wait(turns);
      }
      if (ptx::add_acquire_release(num_left, 1) == gridDim.x - 1) *num_ready = *num_left = 0;
    }
    __syncthreads();
  }
  __device__ __forceinline__ void prepare() {
    prepare_rows<T, Kind::rows>(params_.rows, 0, params_.rows.num_rows,
                                reinterpret_cast<float*>(exchange_), [&](int row, int i) {
                                  return prepared(row, i / kBlockInputs) +
                                         shared_offset(row, i % kBlockInputs * 2);
                                });
    __syncthreads();
  }

  // Fetches what depends on the rows' positions, and their slots, while the first weights are in
  // flight: at the end all warps would wait for them.
  __device__ __forceinline__ void load_positions() const {
    const HeadsParams& heads = params_.finish.heads;
    const int half = heads.rotary_dim / 2;
    const int num_rows = params_.rows.num_rows;
#pragma unroll 1
    for (int row = warp_; row < num_rows; row += kRowWarps) {
      int from = heads.positions[row] * half + lane_;
      float* to = rotations() + row * (2 * half) + lane_;
#pragma unroll 1
      for (int i = lane_; i < half; i += kWarpSize, from += kWarpSize, to += kWarpSize) {
        to[0] = heads.rope_cos[from];
        to[half] = heads.rope_sin[from];
      }
    }
    if (static_cast<int>(threadIdx.x) < num_rows) {
      reinterpret_cast<int64_t*>(tail())[threadIdx.x] = heads.slot_mapping[threadIdx.x];
      query_scales()[threadIdx.x] = query_scale_of(heads, threadIdx.x);
    }
  }
  __device__ __forceinline__ RowPosition position_in_shared(int row) const {
    const int half = params_.finish.heads.rotary_dim / 2;
    const float* cos = rotations() + row * (2 * half);
    return {cos, cos + half, reinterpret_cast<const int64_t*>(tail())[row], query_scales()[row]};
  }
  // [kFewRows], behind as many slots.
  __device__ __forceinline__ float* query_scales() const {
    return reinterpret_cast<float*>(tail() + kFewRows * sizeof(int64_t));
  }
  // [rows][cosines, sines], behind the factors of q.
  __device__ __forceinline__ float* rotations() const { return query_scales() + kFewRows; }

  // [kRowWarps, kFewRows]; each warp uses its own until all tiles are done.
  __device__ __forceinline__ uint64_t* keys() const { return reinterpret_cast<uint64_t*>(tail()); }
  __device__ __forceinline__ void clear_keys() const {
    if (lane_ < kFewRows) keys()[warp_ * kFewRows + lane_] = worst_key();
  }
  __device__ __forceinline__ unsigned char* tail() const {
    return reinterpret_cast<unsigned char*>(exchange_) + few_rows_tail_offset<Kind>(params_);
  }

  __device__ __forceinline__ void find_rows() {
    constexpr bool kIsExchanged = Kind::source == RowSource::kExchanged;
    const auto* base =
        static_cast<const unsigned char*>(kIsExchanged ? params_.exchanged : params_.records);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int row = column * 8 + lane_ / 4;
      records_[column] = nullptr;
      if (row < params_.rows.num_rows) {
        const int64_t source = kIsExchanged ? row : source_row(params_.rows, row);
        records_[column] = base + source * params_.num_k_blocks * kRecordBytes;
      }
    }
  }

  // The slices meet. Two buffers are used in turn, so that one barrier per call is enough: a warp
  // that writes a buffer again has passed the barrier that its readers reached after reading.
  __device__ __forceinline__ void meet(const TileSums<kColumns> (&sums)[kTiles], int tile,
                                       int round) {
    float4* turn = exchange_ + round % 2 * (kNumSlices * kTiles * kColumns * kWarpSize);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        turn[((warp_ * kTiles + i) * kColumns + column) * kWarpSize + lane_] = sums[i].part(column);
      }
    }
    __syncthreads();
    const int mine = (warp_ + kNumSlices - round * kTiles % kNumSlices) % kNumSlices;
    if (mine >= kTiles || tile + mine >= tiles_.end) return;
    const auto part = [&](int slice, int column) {
      return turn[((slice * kTiles + mine) * kColumns + column) * kWarpSize + lane_];
    };
    // The memory of slice 0, which no other warp reads.
    float* sums_of_rows = reinterpret_cast<float*>(turn + mine * kColumns * kWarpSize);
    const int num_rows = params_.rows.num_rows;
    if constexpr (!Kind::is_partial) {
      TileSums<kColumns> total;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        total.set(column,
                  fold_slices<kNumSlices>(0, [&](int slice) { return part(slice, column); }));
      }
      __syncwarp();  // all parts are read
      total.store(params_.finish, tile + mine, sums_of_rows);
      if constexpr (Kind::finish == Finish::kBest) {
        find_best_of_tile<Kind::variant>(params_.finish, tile + mine, num_rows, sums_of_rows,
                                         keys() + warp_ * kFewRows);
      } else {
        finish_tile<T, Kind::finish, Kind::variant>(params_.finish, tile + mine, 0, num_rows,
                                                    sums_of_rows);
      }
    } else {
      const DeviceFoldOrder& order = params_.slices.fold_order;
      FoldStack<kColumns> stack;
#pragma unroll 1
      for (int slice = 0; slice < order.num_entries; ++slice) {
        TileSums<kColumns> sum;
#pragma unroll
        for (int column = 0; column < kColumns; ++column) sum.set(column, part(slice, column));
        stack.push(order.entry(slice), sum);
      }
#pragma unroll 1
      for (int plane = 0; plane < order.num_left; ++plane) {
        store_plane(params_, plane, tile + mine, 0, num_rows, stack.at(plane), sums_of_rows);
      }
    }
  }

  const ProjectionParams& params_;
  float4* exchange_;           // [2 turns][slices][kTiles][kColumns][lane], or scratch
  unsigned char* rows_;        // prepared rows
  const int prepared_stride_;  // bytes from one k block to the next
  const int lane_;
  const int warp_;
  const Range blocks_;  // of k: the warp's slice
  const Range tiles_;   // the block's
  const typename Format::Table table_;
  const unsigned char* records_[kColumns];  // of the lane's rows; null for none
};

// Two blocks per SM: this kernel's and the next one's.
template <class Format, class Kind>
__global__ void __launch_bounds__(kRowThreads, 2) few_rows_kernel(const ProjectionParams params) {
  SPECDEC_SHARED_BYTES(shared);
  FewRows<Format, Kind>(params, shared).run();
}

template <class Format, class Kind>
void launch_few_rows(Stream& stream, const ProjectionParams& params) {
  SPECDEC_CHECK_LE(int64_t{params.num_tiles} * params.tiling.num_blocks, int64_t{UINT32_MAX});
  int64_t shared_bytes = few_rows_tail_offset<Kind>(params);
  if constexpr (Kind::finish == Finish::kHeads) {
    shared_bytes += heads_tail_bytes(params.rows.num_rows, params.finish.heads.rotary_dim);
  } else if constexpr (Kind::finish == Finish::kBest) {
    shared_bytes += kBestKeyBytes;
  }
  launch("few_rows", stream, few_rows_kernel<Format, Kind>,
         {.grid = {static_cast<unsigned>(params.tiling.num_blocks)},
          .block = {kRowThreads},
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .overlaps_previous = true,
          .lets_next_start_early = starts_next_early(Kind::finish),
          .blocks_meet = Kind::source == RowSource::kExchanged},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
