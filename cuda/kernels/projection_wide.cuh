// Projections of so many rows that arithmetic bounds them, on compute capability 9.0: wgmma with
// weights in registers and rows in shared memory. The sums have the bits of the other kernels
// (tiles.cuh).
//
// A block has kWideTiles tiles of weights and kWideRows rows. Of its four warpgroups two multiply,
// a tile per warp, one copies, and one finishes sums. A stage is 64 inputs of a slice. Weights come
// by bulk copies, as they are packed, rows by cp.async; both pass through a ring of stages. A block
// works on one item after another: the next is multiplied while the last is finished.
//
// A lane keeps two sums of each of its elements in registers: that of the slice under way, and that
// of the slices before it that are folded last. Older ones wait in shared memory (`level`).
#pragma once

#include "cuda/kernels/projection_finish.cuh"
#include "cuda/kernels/projection_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Shared memory: levels, the last first, stages, then barriers. What is used last, the last level,
// holds an item's sums while they are finished.
struct WideBlock {
  static constexpr int kMultiplyWarps = kWideTiles;
  static constexpr int kMultiplyThreads = kMultiplyWarps * kWarpSize;
  static constexpr int kCopyWarps = 4;
  static constexpr int kCopyThreads = kCopyWarps * kWarpSize;
  static constexpr int kFinishWarps = 4;
  static constexpr int kThreads = kMultiplyThreads + kCopyThreads + kFinishWarps * kWarpSize;
  // Registers of a thread: 65536 / kThreads at first, then these.
  static constexpr int kMultiplyRegisters = 200;
  static constexpr int kCopyRegisters = 40;
  static constexpr int kFinishRegisters = 72;
  static constexpr int kStageBlocks = 2;                           // k blocks of a stage
  static constexpr int kRowBytes = kStageBlocks * kRecordBytes;    // of a row in a stage
  static constexpr int kRowsBytes = kWideRows * kRowBytes;         // of a stage
  static constexpr int kBlockBytes = kTileOutputs * kRecordBytes;  // of a k block of a tile
  static constexpr int kTileBytes = kStageBlocks * kBlockBytes;    // of a tile in a stage
  static constexpr int kStageBytes = kRowsBytes + kWideTiles * kTileBytes;
  static constexpr int kLevelBytes = kMultiplyThreads * (kWideRows / 2) * 4;
  static constexpr int kMostStages = 5;

  // Partial sums that wait in shared memory, at least one. A run of 4 slices needs no more.
  static __host__ __device__ constexpr int levels(int splits) {
    return splits == 1 ? kWideLevels : 1;
  }
  static __host__ __device__ constexpr int stages(int splits) {
    return levels(splits) == 1 ? kMostStages : kMostStages - kLevelBytes / kStageBytes;
  }
  static __host__ __device__ constexpr int barriers_offset(int splits) {
    return levels(splits) * kLevelBytes + stages(splits) * kStageBytes;
  }
  struct Barriers {
    uint64_t full[kMostStages];
    uint64_t empty[kMostStages];
    uint64_t summed;    // sums are there to be finished
    uint64_t finished;  // their memory is free
    int item;           // whose sums these are; -1: no more come
    int plane;
    int is_last;  // of the blocks that meet
  };
  static constexpr int shared_bytes(int splits) {
    return barriers_offset(splits) + sizeof(Barriers);
  }
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Items are numbered [blocks of tiles][splits][row tiles]: those that run at the same time share
// weights in L2.
template <class T>
class WideRows {
 public:
  __device__ __forceinline__ WideRows(const ProjectionParams& params, unsigned char* shared)
      : params_(params),
        shared_(shared),
        lane_(threadIdx.x % kWarpSize),
        warp_(__shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0)),  // known to be uniform
        splits_(params.tiling.wide_splits),
        row_tiles_((params.rows.num_rows + kWideRows - 1) / kWideRows),
        num_items_((params.num_tiles + kWideTiles - 1) / kWideTiles * splits_ * row_tiles_),
        num_stages_(Block::stages(splits_)),
        stages_(shared + Block::levels(splits_) * Block::kLevelBytes),
        barriers_(*reinterpret_cast<Block::Barriers*>(shared + Block::barriers_offset(splits_))) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int i = 0; i < num_stages_; ++i) {
        ptx::mbarrier_init(barriers_.full + i, Block::kCopyWarps + 1);
        ptx::mbarrier_init(barriers_.empty + i, Block::kMultiplyWarps);
      }
      ptx::mbarrier_init(&barriers_.summed, Block::kMultiplyWarps);
      ptx::mbarrier_init(&barriers_.finished, Block::kFinishWarps);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (warp_ < Block::kMultiplyWarps) {
      ptx::grow_registers<Block::kMultiplyRegisters>();
      ptx::wait_for_previous();
      ptx::let_next_start();
      multiply_items();
    } else if (warp_ >= Block::kMultiplyWarps + Block::kCopyWarps) {
      ptx::shrink_registers<Block::kFinishRegisters>();
      ptx::wait_for_previous();
      ptx::let_next_start();
      finish_items();
    } else {
      ptx::shrink_registers<Block::kCopyRegisters>();
      copy_items();
    }
  }

 private:
  using Block = WideBlock;
  static constexpr int kSums = kWideRows / 2;  // of a lane
  static constexpr int kSteps = 2 * Block::kStageBlocks;
  static constexpr int kPrefetchStages = 8;

  struct Item {
    int row_tile;
    int tile_block;
    int first_slice;
    int end_slice;
  };
  __device__ __forceinline__ Item item_at(int index) const {
    const int split = index / row_tiles_ % splits_;
    const int run = params_.slices.fold_order.num_entries / splits_;
    return {index % row_tiles_, index / row_tiles_ / splits_, split * run, (split + 1) * run};
  }

  // A place in the ring, and how often it was passed.
  struct Place {
    int stage = 0;
    int parity = 0;
  };
  __device__ __forceinline__ void advance(Place& place) const {
    if (++place.stage < num_stages_) return;
    place.stage = 0;
    place.parity ^= 1;
  }
  __device__ __forceinline__ unsigned char* stage_rows(int stage) const {
    return stages_ + stage * Block::kStageBytes;
  }
  __device__ __forceinline__ unsigned char* stage_weights(int stage) const {
    return stage_rows(stage) + Block::kRowsBytes;
  }

  // --- the warps that copy ---

  __device__ __forceinline__ void copy_items() const {
    const bool copies_weights = warp_ == Block::kMultiplyWarps;
    Prefetch ahead = {.next_item = static_cast<int>(blockIdx.x)};
#pragma unroll 1
    for (int i = 0; i < kPrefetchStages; ++i) {
      if (copies_weights) prefetch(ahead);
    }
    ptx::wait_for_previous();
    ptx::let_next_start();
    const int* bounds = params_.slices.bounds;
    Place place;
    int before = -1;  // the stage whose rows are on their way
#pragma unroll 1
    for (int index = blockIdx.x; index < num_items_; index += gridDim.x) {
      const Item item = item_at(index);
      const unsigned char* weights = weights_of(item);
      const unsigned char* records = records_of(item);
      const int num_rows = params_.rows.num_rows - item.row_tile * kWideRows;
#pragma unroll 1
      for (int slice = item.first_slice; slice < item.end_slice; ++slice) {
        const int end = bounds[slice + 1];
#pragma unroll 1
        for (int block = bounds[slice]; block < end; block += Block::kStageBlocks) {
          const int count = min(Block::kStageBlocks, end - block);
          ptx::mbarrier_wait(barriers_.empty + place.stage, place.parity ^ 1);
          if (copies_weights) {
            copy_weights(weights, count * Block::kBlockBytes, place.stage);
            prefetch(ahead);
          }
          copy_rows(records, num_rows, count * kRecordBytes, place.stage);
          weights += count * Block::kBlockBytes;
          records += count * kRecordBytes;
          ptx::copy_async_wait<1>();
          if (before >= 0) tell_rows(before);
          before = place.stage;
          advance(place);
        }
      }
    }
    ptx::copy_async_wait<0>();
    if (before >= 0) tell_rows(before);
  }

  // This lane's weights of an item, from its first k block on. Lanes past the last tile repeat it.
  __device__ __forceinline__ const unsigned char* weights_of(const Item& item) const {
    const int64_t tile = min(item.tile_block * kWideTiles + lane_, params_.num_tiles - 1);
    return static_cast<const unsigned char*>(params_.weights) +
           (tile * params_.num_k_blocks + params_.slices.bounds[item.first_slice]) *
               Block::kBlockBytes;
  }

  __device__ __forceinline__ void copy_weights(const unsigned char* weights, int size_bytes,
                                               int stage) const {
    uint64_t* full = barriers_.full + stage;
    if (lane_ == 0) ptx::mbarrier_arrive_expect(full, kWideTiles * size_bytes);
    __syncwarp();
    if (lane_ >= kWideTiles) return;
    ptx::bulk_copy(stage_weights(stage) + lane_ * Block::kTileBytes, weights, size_bytes, full);
  }

  // Weights that come into L2 ahead of copies, a stage at a time, to the end of the last item.
  struct Prefetch {
    int next_item;
    int num_blocks = 0;  // of k, left of the item before
    const unsigned char* from = nullptr;
  };
  __device__ __forceinline__ void prefetch(Prefetch& ahead) const {
    if (ahead.num_blocks == 0) {
      if (ahead.next_item >= num_items_) return;
      const Item item = item_at(ahead.next_item);
      ahead.next_item += gridDim.x;
      ahead.from = weights_of(item);
      ahead.num_blocks =
          params_.slices.bounds[item.end_slice] - params_.slices.bounds[item.first_slice];
    }
    const int count = min(Block::kStageBlocks, ahead.num_blocks);
    const int size_bytes = count * Block::kBlockBytes;
    if (lane_ < kWideTiles && count > 0) ptx::prefetch_to_l2(ahead.from, size_bytes);
    ahead.from += size_bytes;
    ahead.num_blocks -= count;
  }

  // The warps copy pieces of 16 bytes. This thread's first row in a tile, and its piece of each.
  static constexpr int kRowPieces = Block::kRowBytes / 16;
  __device__ __forceinline__ int copy_row() const {
    return (threadIdx.x - Block::kMultiplyThreads) / kRowPieces;
  }
  __device__ __forceinline__ int copy_piece() const { return threadIdx.x % kRowPieces; }

  __device__ __forceinline__ const unsigned char* records_of(const Item& item) const {
    const int64_t row = item.row_tile * kWideRows + copy_row();
    return static_cast<const unsigned char*>(params_.records) +
           (row * params_.num_k_blocks + params_.slices.bounds[item.first_slice]) * kRecordBytes +
           copy_piece() * 16;
  }

  // Copies so many bytes of every row, swizzled (wgmma_tile). Rows past the end are left as they
  // are: each row is a column of wgmma for itself.
  __device__ __forceinline__ void copy_rows(const unsigned char* records, int num_rows,
                                            int size_bytes, int stage) const {
    constexpr int kRowStride = Block::kCopyThreads / kRowPieces;
    static_assert(kRowStride % 8 == 0);
    const int row = copy_row();
    const int end = copy_piece() * 16 < size_bytes ? num_rows - row : 0;
    const int64_t stride = int64_t{params_.num_k_blocks} * (kRowStride * kRecordBytes);
    unsigned char* to = stage_rows(stage) + row * Block::kRowBytes + (copy_piece() ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < kWideRows; i += kRowStride) {
      if (i < end) ptx::copy_async_16(to + i * Block::kRowBytes, records);
      records += stride;
    }
    ptx::copy_async_commit();
  }

  // The rows that this warp has copied to a stage have arrived.
  __device__ __forceinline__ void tell_rows(int stage) const {
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(barriers_.full + stage);
  }

  // --- the warps that multiply ---

  __device__ __forceinline__ void multiply_items() const {
    Place place;
    int num_posts = 0;
#pragma unroll 1
    for (int index = blockIdx.x; index < num_items_; index += gridDim.x) {
      const Item item = item_at(index);
      float sums[kSums];
      float folded[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) folded[i] = 0.0f;
#pragma unroll 1
      for (int slice = item.first_slice; slice < item.end_slice; ++slice) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
        multiply({params_.slices.bounds[slice], params_.slices.bounds[slice + 1]}, sums, place);
        push(params_.slices.fold_order.entry(slice - item.first_slice), sums, folded, num_posts);
      }
      if (splits_ == 1) {
        post_planes(index, item, folded, num_posts);
      } else if (meet(item, folded)) {
        if (splits_ == 2) post_joined<2>(index, item, num_posts);
        if (splits_ == 4) post_joined<4>(index, item, num_posts);
        if (splits_ == 8) post_joined<8>(index, item, num_posts);
      }
    }
    post(-1, 0, num_posts);
  }

  // Adds the products of a slice, whose last stage may be half of one.
  __device__ __forceinline__ void multiply(const Range& blocks, float (&sums)[kSums],
                                           Place& place) const {
    constexpr int kTurns = 2;
    uint32_t operands[kTurns][kSteps][4];  // a stage's are read while the next are written
    const int num_stages = (blocks.end - blocks.begin) / Block::kStageBlocks;
    int before = -1;
#pragma unroll 1
    for (int i = 0; i < num_stages / kTurns; ++i) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        multiply_stage<kSteps>(sums, operands[turn], place);
        ptx::wgmma_wait<1>();
        if (before >= 0) leave(before);
        before = place.stage;
        advance(place);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    if (before >= 0) leave(before);
    if (num_stages % kTurns != 0) multiply_alone<kSteps>(sums, place);
    if ((blocks.end - blocks.begin) % Block::kStageBlocks != 0) {
      multiply_alone<kSteps / 2>(sums, place);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void multiply_alone(float (&sums)[kSums], Place& place) const {
    uint32_t operands[kSteps][4];
    multiply_stage<kCount>(sums, operands, place);
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    leave(place.stage);
    advance(place);
  }

  // In a packed block, 16 bytes of lane 4g + t are pairs 2t and 2t + 1 of a step's 8 pairs of
  // inputs, each of outputs g and g + 8. As wgmma's operand a lane has pairs t and t + 4, so that
  // rows can keep their order. Half of the lanes read these in turn, for the banks' sake.
  __device__ __forceinline__ void load_operands(int stage, uint32_t (&operands)[kSteps][4]) const {
    const bool swapped = (lane_ & 8) != 0;
    const unsigned char* weights = stage_weights(stage) + warp_ * Block::kTileBytes +
                                   lane_ / 4 * 64 + lane_ % 4 * 8 + (swapped ? 32 : 0);
    const int other = swapped ? -32 : 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const unsigned char* from = weights + step * (Block::kBlockBytes / 2);
      const uint2 first = *reinterpret_cast<const uint2*>(from);
      const uint2 second = *reinterpret_cast<const uint2*>(from + other);
      operands[step][0] = swapped ? second.x : first.x;
      operands[step][1] = swapped ? second.y : first.y;
      operands[step][2] = swapped ? first.x : second.x;
      operands[step][3] = swapped ? first.y : second.y;
    }
  }

  template <int kCount>
  __device__ __forceinline__ void multiply_stage(float (&sums)[kSums],
                                                 uint32_t (&operands)[kSteps][4],
                                                 const Place& place) const {
    ptx::mbarrier_wait(barriers_.full + place.stage, place.parity);
    load_operands(place.stage, operands);
    const uint64_t rows = ptx::wgmma_tile(stage_rows(place.stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      ptx::wgmma_m64k16<T, kWideRows>(sums, operands[step], ptx::wgmma_advance(rows, step));
    }
    ptx::wgmma_commit();
  }

  // This warp is done with a stage.
  __device__ __forceinline__ void leave(int stage) const {
    if (lane_ == 0) ptx::mbarrier_arrive(barriers_.empty + stage);
  }

  // --- folding ---

  // Four of this lane's sums at a level. A warp's part is as large as a tile's sums.
  __device__ __forceinline__ float4* level(int index, int column) const {
    return reinterpret_cast<float4*>(shared_ +
                                     (Block::levels(splits_) - 1 - index) * Block::kLevelBytes) +
           (warp_ * (kSums / 4) + column) * kWarpSize + lane_;
  }
  static __device__ __forceinline__ void set(float (&sums)[kSums], int column, float4 part) {
    sums[4 * column] = part.x;
    sums[4 * column + 1] = part.y;
    sums[4 * column + 2] = part.z;
    sums[4 * column + 3] = part.w;
  }
  static __device__ __forceinline__ float4 part(const float (&sums)[kSums], int column) {
    return make_float4(sums[4 * column], sums[4 * column + 1], sums[4 * column + 2],
                       sums[4 * column + 3]);
  }

  // FoldStack's push(), with the top of the stack in `folded`.
  __device__ __forceinline__ void push(const FoldEntry& entry, const float (&sums)[kSums],
                                       float (&folded)[kSums], int num_posts) const {
    if (entry.num_folds == 0) {
      if (entry.stack_index > 0) {
        if (entry.stack_index == Block::levels(splits_)) wait_for_posts(num_posts);
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) *level(entry.stack_index - 1, i) = part(folded, i);
      }
#pragma unroll
      for (int i = 0; i < kSums; ++i) folded[i] = sums[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) folded[i] += sums[i];
#pragma unroll 1
    for (int at = entry.stack_index + entry.num_folds - 2; at >= entry.stack_index; --at) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) set(folded, i, add(part(folded, i), *level(at, i)));
    }
  }

  __device__ __forceinline__ int64_t cell_of(const Item& item) const {
    return int64_t{item.tile_block} * row_tiles_ + item.row_tile;
  }
  // Four of this lane's sums of an item's first split.
  __device__ __forceinline__ float4* partials(const Item& item) const {
    return reinterpret_cast<float4*>(params_.partials) +
           cell_of(item) * splits_ * (Block::kLevelBytes / 16) + threadIdx.x;
  }
  static __device__ __forceinline__ int partial_index(int split, int column) {
    return (split * (kSums / 4) + column) * Block::kMultiplyThreads;
  }

  // Stores the sums of an item's run of slices. Returns true in the block that comes last.
  __device__ __forceinline__ bool meet(const Item& item, const float (&folded)[kSums]) const {
    float4* out = partials(item);
    const int split = item.first_slice * splits_ / params_.slices.fold_order.num_entries;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) out[partial_index(split, i)] = part(folded, i);
    ptx::named_barrier(1, Block::kMultiplyThreads);
    if (threadIdx.x == 0) {
      uint32_t* arrivals = params_.partial_arrivals + cell_of(item);
      const bool last =
          ptx::add_acquire_release(arrivals, 1u) == static_cast<uint32_t>(splits_ - 1);
      if (last) *arrivals = 0;
      barriers_.is_last = last;
    }
    ptx::named_barrier(1, Block::kMultiplyThreads);
    if (barriers_.is_last == 0) return false;
    return true;
  }

  // --- the end of an item ---

  // The sums of a warp's tile as they are finished, [rows, 16 outputs], in the last level.
  __device__ __forceinline__ float* sums_of_rows(int tile) const {
    return reinterpret_cast<float*>(shared_) + tile * (kWideRows * kTileOutputs);
  }
  __device__ __forceinline__ void wait_for_posts(int num_posts) const {
    ptx::mbarrier_wait(&barriers_.finished, num_posts % 2 ^ 1);
  }

  // Hands the sums that this warp has stored to those that finish.
  __device__ __forceinline__ void post(int index, int plane, int& num_posts) const {
    if (index < 0) wait_for_posts(num_posts);
    if (threadIdx.x == 0) {
      barriers_.item = index;
      barriers_.plane = plane;
    }
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(&barriers_.summed);
    ++num_posts;
  }

  // The planes of sums that are left; the one at the last level, if there is one, before it is
  // overwritten.
  __device__ __forceinline__ void post_planes(int index, const Item& item,
                                              const float (&folded)[kSums], int& num_posts) const {
    const int tile = item.tile_block * kWideTiles + warp_;
    const int num_left = params_.slices.fold_order.num_left;
#pragma unroll 1
    for (int i = 1; i <= num_left; ++i) {
      const int plane = i % num_left;
      const bool is_top = plane == num_left - 1;
      TileSums<kWideRows / 8> total;
#pragma unroll
      for (int column = 0; column < kSums / 4; ++column) {
        total.set(column, is_top ? part(folded, column) : *level(plane, column));
      }
      __syncwarp();
      wait_for_posts(num_posts);
      if (tile < params_.num_tiles) total.store(params_.finish, tile, sums_of_rows(warp_));
      post(index, plane, num_posts);
    }
  }

  // The sums of splits that have met.
  template <int kSplits>
  __device__ __forceinline__ void post_joined(int index, const Item& item, int& num_posts) const {
    constexpr int kColumns = 16 / kSplits;  // whose sums are read together
    const int tile = item.tile_block * kWideTiles + warp_;
    wait_for_posts(num_posts);
#pragma unroll 1
    for (int first = 0; first < kWideRows / 8; first += kColumns) {
      if (tile >= params_.num_tiles) break;
      TileSums<kColumns> total;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        total.set(i, fold_slices<kSplits>(0, [&](int split) {
                    return partials(item)[partial_index(split, first + i)];
                  }));
      }
      total.store(params_.finish, tile, sums_of_rows(warp_) + first * 8 * kTileOutputs);
    }
    post(index, 0, num_posts);
  }

  // The warps that finish.
  __device__ __forceinline__ void finish_items() const {
#pragma unroll 1
    for (int num_posts = 0;; ++num_posts) {
      ptx::mbarrier_wait(&barriers_.summed, num_posts % 2);
      const int index = *const_cast<const volatile int*>(&barriers_.item);
      if (index < 0) return;
      const Item item = item_at(index);
      const int first_row = item.row_tile * kWideRows;
      const int num_rows = min(kWideRows, params_.rows.num_rows - first_row);
#pragma unroll 1
      for (int i = warp_ % Block::kFinishWarps; i < kWideTiles; i += Block::kFinishWarps) {
        const int tile = item.tile_block * kWideTiles + i;
        if (tile >= params_.num_tiles) break;
        finish_rows(tile, first_row, num_rows, sums_of_rows(i));
      }
      __syncwarp();
      if (lane_ == 0) ptx::mbarrier_arrive(&barriers_.finished);
    }
  }

  // finish_tile(), with faster code for what is common.
  __device__ __forceinline__ void finish_rows(int tile, int first_row, int num_rows,
                                              float* sums) const {
    const FinishParams& finish = params_.finish;
    const bool is_heads = finish.kind == Finish::kHeads;
    if (is_heads || finish.kind == Finish::kStore) {
      float* out = is_heads ? finish.heads.sums : static_cast<float*>(finish.out);
      if (!is_heads) out += barriers_.plane * finish.plane_stride;
      const bool is_aligned =
          finish.out_features % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
      if (is_aligned && finish.soft_cap == 0.0f) {
        return store_fours(out, is_heads, tile, first_row, num_rows, sums);
      }
      if (barriers_.plane > 0) {
        FinishParams plane = finish;
        plane.out = out;
        return store_tile<false, FinishVariant::kAny>(plane, tile, first_row, num_rows, sums);
      }
    }
    if (finish.kind == Finish::kActivateGated && finish.activation == Activation::kSilu) {
      return gate_silu(tile, first_row, num_rows, sums);
    }
    finish_tile<T>(finish, tile, first_row, num_rows, sums);
  }

  // Stores four outputs of a row at a time, and reads kBatch rows together.
  __device__ __forceinline__ void store_fours(float* out, bool is_heads, int tile, int first_row,
                                              int num_rows, const float* sums) const {
    constexpr int kBatch = 8;
    constexpr int kStride = kWarpSize / 4;
    const FinishParams& finish = params_.finish;
    const int n = tile * kTileOutputs + lane_ % 4 * 4;
    if (n >= finish.out_features) return;
    float bias[4] = {};
    const bool accumulates = !is_heads && finish.accumulate;
    if (!is_heads && finish.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) bias[i] = finish.bias[n + i];
    }
    const auto changed = [&](float sum, int i) {
      return is_heads ? sum : stored_value<FinishVariant::kPlain>(finish, sum, bias[i]);
    };
    out += (first_row + lane_ / 4) * int64_t{finish.out_features} + n;
    const int64_t stride = int64_t{finish.out_features} * kStride;
#pragma unroll 1
    for (int begin = lane_ / 4; begin < num_rows; begin += kBatch * kStride) {
      float4 before[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        before[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (accumulates && begin + i * kStride < num_rows) {
          before[i] = *reinterpret_cast<const float4*>(out + i * stride);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = begin + i * kStride;
        if (row >= num_rows) break;
        float4 sum = *reinterpret_cast<const float4*>(sums + row * kTileOutputs + lane_ % 4 * 4);
        sum =
            make_float4(changed(sum.x, 0), changed(sum.y, 1), changed(sum.z, 2), changed(sum.w, 3));
        *reinterpret_cast<float4*>(out + i * stride) = accumulates ? add(sum, before[i]) : sum;
      }
      out += kBatch * stride;
    }
  }

  // gate_tile() with SiLU, kBatch rows at a time.
  __device__ __forceinline__ void gate_silu(int tile, int first_row, int num_rows,
                                            const float* sums) const {
    constexpr int kBatch = 8;
    constexpr int kFeatures = kTileOutputs / 2;
    constexpr int kStride = kWarpSize / kFeatures;
    static_assert(kWideRows % (kBatch * kStride) == 0);
    const FinishParams& finish = params_.finish;
    const int dim = finish.out_features / 2;
    const int feature = tile * kFeatures + lane_ % kFeatures;
    if (feature >= dim) return;
    const float gate_bias = finish.bias != nullptr ? finish.bias[feature] : 0.0f;
    const float up_bias = finish.bias != nullptr ? finish.bias[dim + feature] : 0.0f;
    T* out = static_cast<T*>(finish.out) + first_row * int64_t{dim} + feature;
#pragma unroll 1
    for (int begin = lane_ / kFeatures; begin < num_rows; begin += kBatch * kStride) {
      float gates[kBatch];
      float divisors[kBatch];
      const float* from = sums + begin * kTileOutputs + lane_ % kFeatures;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        gates[i] = from[i * kStride * kTileOutputs] + gate_bias;
        divisors[i] = 1.0f + expf(-gates[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = begin + i * kStride;
        if (row >= num_rows) break;
        const float up = from[i * kStride * kTileOutputs + kFeatures] + up_bias;
        out[row * int64_t{dim}] = from_float<T>(gates[i] / divisors[i] * up);
      }
    }
  }

  const ProjectionParams& params_;
  unsigned char* shared_;
  const int lane_;
  const int warp_;
  const int splits_;
  const int row_tiles_;
  const int num_items_;
  const int num_stages_;
  unsigned char* stages_;
  Block::Barriers& barriers_;
};

#endif

template <class T>
__global__ void __launch_bounds__(WideBlock::kThreads, 1)
    wide_rows_kernel(const ProjectionParams params) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SPECDEC_SHARED_BYTES(shared);
  WideRows<T>(params, shared).run();
#endif
}

template <class T>
void launch_wide_rows(Stream& stream, const ProjectionParams& params) {
  const int splits = params.tiling.wide_splits;
  launch("wide_rows", stream, wide_rows_kernel<T>,
         {.grid = {static_cast<unsigned>(params.tiling.num_blocks)},
          .block = {WideBlock::kThreads},
          .shared_bytes = static_cast<size_t>(WideBlock::shared_bytes(splits)),
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
