// Projections of up to 64 rows on compute capability 9.0: the weights are read once, as one stream,
// and multiplied by wgmma. Rows are records.
//
// The stream of a block is a run of units; a unit is a slice of k of a group of kStreamTiles tiles,
// and a group's slices follow each other. A stage is the weights of a few k blocks of the group's
// tiles, and the same k blocks of all rows. One warp fills a ring of stages in shared memory,
// across the ends of units, by bulk copies (weights) and cp.async (rows). Two warpgroups multiply,
// with the weights in registers: a warp has a tile.
//
// Slices are folded as they end (FoldStack). If a group is cut, each block leaves the sums of the
// largest subtrees of its slices in memory, and the warps that come last fold them in the order
// of all other kernels.
//
// A block takes at most half of an SM, so a block of the next such kernel fits beside it and has
// its ring filled with weights before this kernel ends.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_finish.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kStreamThreads = kStreamTiles * kWarpSize;  // that multiply
inline constexpr int kMinStreamStages = 3;
inline constexpr int kMaxStreamStages = 16;
inline constexpr int kStreamPartRows = 8;  // that a warp finishes together
inline constexpr int kStreamPartBytes = kStreamPartRows * kTileOutputs * 4;
// Of the 132 KB, two blocks have half each, less what the system takes.
inline constexpr int64_t kStreamSharedBytes = kStepSharedBytes / 2 - 1024;
inline constexpr int64_t kStreamBarrierBytes = 2 * kMaxStreamStages * 8;

// The shape of a block of kColumns tiles of 8 rows.
template <class Format, int kColumns>
struct StreamBlock {
  static constexpr int kRows = kColumns * 8;
  // k blocks of a stage: 8 KB of weights, but with 64 rows registers allow fewer codes.
  static constexpr int kStageBlocks = Format::kBlockBytes < 1024 && kColumns < 8 ? 2 : 1;
  static constexpr int kRowTileBytes = kRows * kRecordBytes;  // of a k block
  static constexpr int kStageRowBytes = kStageBlocks * kRowTileBytes;
  static constexpr int kTileBytes = kStageBlocks * Format::kBlockBytes;
  static constexpr int kStageBytes = kStageRowBytes + kStreamTiles * kTileBytes;
  static_assert(kStageBytes % 512 == 0);
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A lane's part of a packed block in shared memory, and the A operands of its two steps. Lane 4g +
// t of a packed block has pairs 2t and 2t + 1 of a step's 8 pairs of inputs; wgmma wants pairs t
// and t + 4, as the rows have their natural order.
template <class Format>
struct StreamWeights;

template <class T>
struct StreamWeights<ActFormat<T>> {
  uint2 halves[2][2];

  // Pair p of outputs g and g + 8 is 8 bytes. Lanes of odd g / 2 read the upper pairs first: half a
  // warp then has no bank conflicts.
  __device__ __forceinline__ void load(const unsigned char* block, int lane) {
    const int g = lane / 4;
    const int first = g * 64 + lane % 4 * 8 + (g & 2) * 16;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      halves[step][0] = *reinterpret_cast<const uint2*>(block + step * 512 + first);
      halves[step][1] = *reinterpret_cast<const uint2*>(block + step * 512 + (first ^ 32));
    }
  }
  __device__ __forceinline__ void operand(int step, int lane, uint32_t (&a)[4]) const {
    const bool upper_first = (lane & 8) != 0;
    const uint2 first = halves[step][0];
    const uint2 second = halves[step][1];
    a[0] = upper_first ? second.x : first.x;
    a[1] = upper_first ? second.y : first.y;
    a[2] = upper_first ? first.x : second.x;
    a[3] = upper_first ? first.y : second.y;
  }
};

// Exchanges words between lanes whose indices differ in one bit, `distance`: the lane with the bit
// gives its `low` for the other's `high`.
__device__ __forceinline__ void exchange_words(uint32_t& low, uint32_t& high, int distance) {
  const bool has_bit = (threadIdx.x & distance) != 0;
  const uint32_t other = __shfl_xor_sync(kAllLanes, has_bit ? low : high, distance);
  low = has_bit ? other : low;
  high = has_bit ? high : other;
}

template <class T, CodeKind kKind>
struct StreamWeights<OutputScaleFormat<T, kKind>> {
  uint4 codes;

  __device__ __forceinline__ void load(const unsigned char* block, int lane) {
    codes = *reinterpret_cast<const uint4*>(block + lane * 16);
  }
  // Words of codes, one of each pair, are exchanged in place of elements.
  __device__ __forceinline__ void operand(int step, int, uint32_t (&a)[4]) const {
    uint4 own = codes;
    uint32_t& low = step == 0 ? own.x : own.z;
    uint32_t& high = step == 0 ? own.y : own.w;
    exchange_words(low, high, 1);
    exchange_words(low, high, 2);
    operand_of<T, kKind>(own, step, a);
  }
};

template <class Format, int kColumns>
class StreamRows {
 public:
  __device__ __forceinline__ StreamRows(const ProjectionParams& params, int num_slots,
                                        unsigned char* shared)
      : params_(params),
        shared_(shared),
        num_slots_(num_slots),
        lane_(threadIdx.x % kWarpSize),
        warp_(threadIdx.x / kWarpSize),
        first_unit_(blockIdx.x * params.tiling.stream_units),
        end_unit_(min(first_unit_ + params.tiling.stream_units,
                      stream_groups(params.num_tiles) * kNumSlices)) {}

  __device__ __forceinline__ void run() {
    if (starts_next_early(params_.finish.kind)) ptx::let_next_start();
    set_up();
    __syncthreads();
    if (warp_ == kStreamTiles) {
      fill();
    } else {
      consume();
    }
  }

 private:
  using T = typename Format::Element;
  using Block = StreamBlock<Format, kColumns>;
  static constexpr int kRows = Block::kRows;
  static constexpr int kStageBlocks = Block::kStageBlocks;

  // A stage of the block's stream.
  struct Stage {
    int unit;
    Range blocks;  // of k, from the stage to the end of the slice
    int slot = 0;
    int parity = 0;  // of the ring's round
  };

  __device__ __forceinline__ void find_unit(Stage& stage) const {  // passes empty slices
    for (; stage.unit < end_unit_; ++stage.unit) {
      stage.blocks = slice_blocks(stage.unit % kNumSlices, params_.slices);
      if (stage.blocks.begin < stage.blocks.end) return;
    }
  }
  __device__ __forceinline__ Stage first_stage() const {
    Stage stage = {first_unit_, {0, 0}};
    find_unit(stage);
    return stage;
  }
  __device__ __forceinline__ bool exists(const Stage& stage) const {
    return stage.unit < end_unit_;
  }
  __device__ __forceinline__ void advance(Stage& stage) const {
    stage.blocks.begin += kStageBlocks;
    if (stage.blocks.begin >= stage.blocks.end) {
      ++stage.unit;
      find_unit(stage);
    }
    if (++stage.slot == num_slots_) {
      stage.slot = 0;
      stage.parity ^= 1;
    }
  }
  // K blocks of a stage.
  static __device__ __forceinline__ int count_of(const Stage& stage) {
    return min(kStageBlocks, stage.blocks.end - stage.blocks.begin);
  }

  // Shared memory: the ring, [slot][rows, then weights]; barriers; scratch.
  __device__ __forceinline__ unsigned char* rows_at(int slot) const {
    return shared_ + slot * Block::kStageBytes;
  }
  __device__ __forceinline__ unsigned char* weights_at(int slot, int tile) const {
    return rows_at(slot) + Block::kStageRowBytes + tile * Block::kTileBytes;
  }
  __device__ __forceinline__ uint64_t* full(int slot) const {
    return reinterpret_cast<uint64_t*>(shared_ + num_slots_ * Block::kStageBytes) + slot;
  }
  __device__ __forceinline__ uint64_t* empty(int slot) const {
    return full(slot) + kMaxStreamStages;
  }
  __device__ __forceinline__ float* scratch() const {
    return reinterpret_cast<float*>(full(0) + 2 * kMaxStreamStages);
  }

  __device__ __forceinline__ void set_up() const {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int slot = 0; slot < num_slots_; ++slot) {
        ptx::mbarrier_init(full(slot), 1 + kWarpSize);
        ptx::mbarrier_init(empty(slot), kStreamTiles);
      }
      ptx::mbarrier_init_fence();
    }
    // Rows that there are not stay zeros.
#pragma unroll 1
    for (int slot = warp_; slot < num_slots_; slot += kStreamTiles + 1) {
#pragma unroll 1
      for (int i = lane_ * 16; i < Block::kStageRowBytes; i += kWarpSize * 16) {
        *reinterpret_cast<uint4*>(rows_at(slot) + i) = make_uint4(0, 0, 0, 0);
      }
    }
    ptx::fence_async_proxy();
  }

  // --- the warp that fills the ring ---

  __device__ __forceinline__ void fill() const {
    Stage stage = first_stage();
    Stage ahead = stage;
    int num_ahead = 0;
#pragma unroll 1
    for (; num_ahead < num_slots_ && exists(ahead); ++num_ahead, advance(ahead)) {
      copy_weights(ahead);
    }
    prefetch(stage);
    ptx::wait_for_previous();
    if (!starts_next_early(params_.finish.kind)) ptx::let_next_start();
#pragma unroll 1
    for (int i = 0; exists(stage); ++i, advance(stage)) {
      if (i >= num_ahead) {
        ptx::mbarrier_wait(empty(stage.slot), stage.parity ^ 1);
        copy_weights(stage);
      }
      copy_rows(stage);
    }
  }

  __device__ __forceinline__ const unsigned char* block_at(int64_t tile, int block) const {
    return static_cast<const unsigned char*>(params_.weights) +
           (tile * params_.num_k_blocks + block) * Format::kBlockBytes;
  }

  // Prefetches weights of the first group, behind those that fit the ring, into L2.
  __device__ __forceinline__ void prefetch(const Stage& stage) const {
    if (!exists(stage)) return;
    constexpr int kLanes = kWarpSize / kStreamTiles;  // per tile
    constexpr int kPiece = 4096;
    constexpr int kPieces = 4;  // per tile: 128 KB in all
    const int group = stage.unit / kNumSlices;
    const int tile = group * kStreamTiles + lane_ / kLanes;
    if (tile >= params_.num_tiles) return;
    const int last_slice = min(end_unit_ - 1 - group * kNumSlices, kNumSlices - 1);
    const int begin = stage.blocks.begin + num_slots_ * kStageBlocks;
    const int num_blocks = slice_blocks(last_slice, params_.slices).end - begin;
    const int num_bytes = num_blocks * Format::kBlockBytes;
#pragma unroll 1
    for (int i = lane_ % kLanes; i < kPieces; i += kLanes) {
      const int offset = i * kPiece;
      if (offset >= num_bytes) return;
      ptx::prefetch_to_l2(block_at(tile, begin) + offset,
                          static_cast<uint32_t>(min(num_bytes - offset, kPiece)));
    }
  }

  __device__ __forceinline__ void copy_weights(const Stage& stage) const {
    const int first_tile = stage.unit / kNumSlices * kStreamTiles;
    const int num_tiles = min(params_.num_tiles - first_tile, kStreamTiles);
    const int num_bytes = count_of(stage) * Format::kBlockBytes;
    if (lane_ == 0) ptx::mbarrier_arrive_expect(full(stage.slot), num_tiles * num_bytes);
    __syncwarp();
    if (lane_ < num_tiles) {
      ptx::bulk_copy(weights_at(stage.slot, lane_),
                     block_at(first_tile + lane_, stage.blocks.begin), num_bytes, full(stage.slot));
    }
  }

  // Rows of a k block are a tile of wgmma (wgmma_narrow_tile). K blocks past the slice are zeros.
  __device__ __forceinline__ void copy_rows(const Stage& stage) const {
    constexpr int kPieces = kStageBlocks * kRecordBytes / 16;  // of a row
    constexpr int kRowStride = kWarpSize / kPieces;
    const int piece = lane_ % kPieces;
    const int block = piece / (kRecordBytes / 16);
    const bool valid = block < count_of(stage);
    const int64_t row_bytes = int64_t{params_.num_k_blocks} * kRecordBytes;
    const unsigned char* source = static_cast<const unsigned char*>(params_.records) +
                                  (valid ? stage.blocks.begin * kRecordBytes + piece * 16 : 0);
    unsigned char* to = rows_at(stage.slot) + block * Block::kRowTileBytes;
#pragma unroll
    for (int i = 0; i < kRows; i += kRowStride) {
      const int row = i + lane_ / kPieces;
      if (row >= params_.rows.num_rows) break;
      ptx::copy_async_16(to + row * kRecordBytes + ((piece ^ row / 2) % 4) * 16,
                         source + row * row_bytes, valid);
    }
    ptx::copy_async_arrive(full(stage.slot));
  }

  // --- the warps that multiply ---

  __device__ __forceinline__ void sync() const { ptx::named_barrier(1, kStreamThreads); }

  __device__ __forceinline__ void consume() {
    ptx::wait_for_previous();
    Stage stage = first_stage();
    StreamWeights<Format> weights[kStageBlocks] = {};
    load_weights(weights, stage);
#pragma unroll 1
    for (int unit = first_unit_; unit < end_unit_;) {
      FoldStack<kColumns> stack;
      const int group = unit / kNumSlices;
      const int first = unit % kNumSlices;
      const int end = min(first + end_unit_ - unit, kNumSlices);
      int depth = 0;
#pragma unroll 1
      for (int slice = first; slice < end; ++slice) {
        float sums[kRows / 2];
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) sums[i] = 0.0f;
        add_products(sums, weights, stage, group * kNumSlices + slice);
        TileSums<kColumns> total;
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) total.values[i / 4][i % 4] = sums[i];
        stack.push(fold_entry({slice, slice + 1}, first, depth), total);
      }
      if (end - first == kNumSlices || meet(group, {first, end}, depth, stack)) {
        finish(group, stack);
      }
      unit += end - first;
    }
  }

  __device__ __forceinline__ void load_weights(StreamWeights<Format> (&weights)[kStageBlocks],
                                               const Stage& stage) const {
    if (!exists(stage)) return;
    ptx::mbarrier_wait(full(stage.slot), stage.parity);
#pragma unroll
    for (int i = 0; i < kStageBlocks; ++i) {
      weights[i].load(weights_at(stage.slot, warp_) + i * Format::kBlockBytes, lane_);
    }
  }

  // The products of a unit; codes past the slice, whatever they are, meet zeros. `weights` are
  // those of `stage`, which it moves to the next unit's first.
  __device__ __forceinline__ void add_products(float (&sums)[kRows / 2],
                                               StreamWeights<Format> (&weights)[kStageBlocks],
                                               Stage& stage, int unit) const {
#pragma unroll 1
    while (stage.unit == unit) {
      uint32_t operands[2 * kStageBlocks][4];
#pragma unroll
      for (int i = 0; i < 2 * kStageBlocks; ++i) {
        weights[i / 2].operand(i % 2, lane_, operands[i]);
      }
      ptx::fence_async_proxy();  // the rows came by cp.async
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2 * kStageBlocks; ++i) {
        const uint64_t rows =
            ptx::wgmma_narrow_tile(rows_at(stage.slot) + i / 2 * Block::kRowTileBytes);
        ptx::wgmma_m64k16<T, kRows>(sums, operands[i], ptx::wgmma_advance(rows, i % 2));
      }
      ptx::wgmma_commit();
      const int slot = stage.slot;
      advance(stage);
      load_weights(weights, stage);
      ptx::wgmma_wait<0>();
      ptx::wgmma_hold(sums);
      if (lane_ == 0) ptx::mbarrier_arrive(empty(slot));
    }
  }

  // How the sum of a node of the tree of slices is folded into a stack of `depth` nodes, the first
  // of which begins at slice `first`.
  static __device__ __forceinline__ FoldEntry fold_entry(Range node, int first, int& depth) {
    int num_folds = 0;
    for (int begin = node.begin, size = node.end - node.begin;
         begin % (2 * size) != 0 && begin - size >= first; begin -= size, size *= 2) {
      ++num_folds;
    }
    depth -= num_folds;
    return {num_folds, depth++};
  }

  // The sums of node `number` of a run of slices that begins with `unit`. A block has a run at its
  // beginning, and may have one at its end.
  __device__ __forceinline__ float4* partial(int unit, int number) const {
    const int block = unit / params_.tiling.stream_units;
    const int index = unit % params_.tiling.stream_units == 0 ? number : number + kStreamNodes / 2;
    return reinterpret_cast<float4*>(params_.partials) +
           (int64_t{block} * kStreamNodes + index) * (kColumns * kStreamThreads) + threadIdx.x;
  }

  // A node that a block has left for others.
  struct Node {
    int begin;  // slices
    int end;
    int number;  // in its run
    const float4* sums;
  };
  // The node of a group behind another. Behind the last one it is empty.
  __device__ __forceinline__ Node next_node(int group, const Node& before) const {
    const int units = params_.tiling.stream_units;
    const int first_unit = group * kNumSlices;
    const int begin = before.end;
    if (begin == kNumSlices) return {begin, begin, 0, nullptr};
    const int unit = first_unit + begin;
    const int run_begin = max(unit / units * units, first_unit);
    const int run_end = min(unit / units * units + units - first_unit, kNumSlices);
    int size = 1;
    while (begin % (2 * size) == 0 && begin + 2 * size <= run_end) size *= 2;
    const int number = unit == run_begin ? 0 : before.number + 1;
    return {begin, begin + size, number, partial(run_begin, number)};
  }

  // Stores the sums of a part of a group. Returns true in the warp that comes last, or in all warps
  // of a block if the block finishes heads, with all slices folded.
  __device__ __forceinline__ bool meet(int group, Range run, int num_nodes,
                                       FoldStack<kColumns>& stack) const {
    const int first_unit = group * kNumSlices;
    const int units = params_.tiling.stream_units;
#pragma unroll 1
    for (int i = 0; i < num_nodes; ++i) {
      float4* to = partial(first_unit + run.begin, i);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        to[column * kStreamThreads] = stack.sums[i][column];
      }
    }
    const uint32_t num_others = (first_unit + kNumSlices - 1) / units - first_unit / units;
    if (!is_last(group, num_others)) return false;
    // Nodes are read together, as many as registers allow: each takes a round trip to L2.
    constexpr int kBatch = kColumns < 2 ? 4 : 8 / kColumns;
    Node node = {0, 0, 0, nullptr};
    int depth = 0;
#pragma unroll 1
    while (node.end < kNumSlices) {
      Node nodes[kBatch];
      TileSums<kColumns> sums[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        nodes[i] = node = next_node(group, node);
        if (node.begin == kNumSlices) continue;
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          sums[i].set(column, node.sums[column * kStreamThreads]);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (nodes[i].begin == kNumSlices) continue;
        stack.push(fold_entry({nodes[i].begin, nodes[i].end}, 0, depth), sums[i]);
      }
    }
    return true;
  }

  // Counts this warp's, or this block's, sums of a group.
  __device__ __forceinline__ bool is_last(int group, uint32_t num_others) const {
    uint32_t* arrivals = params_.partial_arrivals + group * kStreamTiles;
    const auto count = [&](uint32_t* counter) {
      const bool last = ptx::add_acquire_release(counter, 1u) == num_others;
      if (last) *counter = 0;
      return last;
    };
    if (params_.finish.kind != Finish::kHeads) {
      __syncwarp();
      const int last = lane_ == 0 ? count(arrivals + warp_) : 0;
      return __shfl_sync(kAllLanes, last, 0) != 0;
    }
    int* flag = reinterpret_cast<int*>(scratch());
    sync();
    if (threadIdx.x == 0) *flag = count(arrivals);
    sync();
    return *flag != 0;
  }

  // What finish_tile does for Finish::kStore without a soft cap, from registers: up to 32 rows of
  // old outputs are read together.
  __device__ __forceinline__ void store_sums(int tile, const float4 (&sums)[kColumns]) const {
    constexpr int kPart = kColumns < 4 ? kColumns : 4;
    const FinishParams& finish = params_.finish;
    const int num_rows = params_.rows.num_rows;
#pragma unroll 1
    for (int part = 0; part < 2 * kColumns; part += kPart) {
      const int half = part / kColumns;
      const int first = part % kColumns;  // column
      const int n = tile * kTileOutputs + half * 8 + lane_ / 4;
      if (n >= finish.out_features) return;
      const float scale = finish.scales != nullptr ? finish.scales[n] : 1.0f;
      const float bias = finish.bias != nullptr ? finish.bias[n] : 0.0f;
      const int first_row = first * 8 + lane_ % 4 * 2;
      float* const out =
          static_cast<float*>(finish.out) + int64_t{first_row} * finish.out_features + n;
      const auto at = [&](int i) {
        return out + (i / 2 * 8 + i % 2) * int64_t{finish.out_features};
      };
      const auto exists = [&](int i) { return first_row + i / 2 * 8 + i % 2 < num_rows; };
      float before[2 * kPart];
#pragma unroll
      for (int i = 0; i < 2 * kPart; ++i) {
        before[i] = finish.accumulate && exists(i) ? *at(i) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2 * kPart; ++i) {
        const float4& four = sums[first + i / 2];
        const float low = half == 0 ? four.x : four.z;
        const float high = half == 0 ? four.y : four.w;
        const float value =
            stored_value<FinishVariant::kPlain>(finish, (i % 2 == 0 ? low : high) * scale, bias);
        if (exists(i)) *at(i) = finish.accumulate ? value + before[i] : value;
      }
    }
  }

  __device__ __forceinline__ void finish(int group, const FoldStack<kColumns>& stack) const {
    constexpr int kPart = kStreamPartRows;
    const FinishParams& finish = params_.finish;
    const bool has_heads = finish.kind == Finish::kHeads;
    if (has_heads) sync();  // the scratch is free
    const int tile = group * kStreamTiles + warp_;
    if (finish.kind == Finish::kStore && finish.soft_cap == 0.0f) {
      if (tile < params_.num_tiles) store_sums(tile, stack.sums[0]);
    } else if (tile < params_.num_tiles) {
      float* sums_of_rows = scratch() + warp_ * (kPart * kTileOutputs);
#pragma unroll 1
      for (int first = 0; first < params_.rows.num_rows; first += kPart) {
        __syncwarp();  // the old sums have been read
        TileSums<1> part;
        part.set(0, stack.sums[0][first / kPart]);
        part.store(finish, tile, sums_of_rows);
        finish_tile<T>(finish, tile, first, min(kPart, params_.rows.num_rows - first),
                       sums_of_rows);
      }
    }
    if (has_heads) {
      const Range tiles = {group * kStreamTiles,
                           min((group + 1) * kStreamTiles, params_.num_tiles)};
      finish_heads<T, kStreamThreads>(finish, tiles, 0, 0, params_.rows.num_rows, scratch(),
                                      [&](int row) { return position_of(finish.heads, row); });
    }
  }

  const ProjectionParams& params_;
  unsigned char* shared_;
  const int num_slots_;  // of the ring
  const int lane_;
  const int warp_;
  const int first_unit_;
  const int end_unit_;
};

#endif

// Two blocks per SM: this kernel's and the next one's.
template <class Format, int kColumns>
__global__ void __launch_bounds__(kStreamThreads + kWarpSize, 2)
    stream_rows_kernel(const ProjectionParams params, const int num_slots) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SPECDEC_SHARED_BYTES(shared);
  StreamRows<Format, kColumns>(params, num_slots, shared).run();
#endif
}

template <class Format, int kColumns>
void launch_stream_rows(Stream& stream, const ProjectionParams& params) {
  constexpr int64_t kStageBytes = StreamBlock<Format, kColumns>::kStageBytes;
  SPECDEC_CHECK(params.slices.fold_order.is_whole());
  SPECDEC_CHECK_LE(params.rows.num_rows, kColumns * 8);
  int64_t shared_bytes = kStreamBarrierBytes + kStreamTiles * kStreamPartBytes;
  if (params.finish.kind == Finish::kHeads) {
    shared_bytes = std::max(
        shared_bytes,
        kStreamBarrierBytes + heads_scratch_bytes(kStreamTiles, params.finish.heads.kv.head_dim));
  }
  const int64_t num_slots = std::clamp<int64_t>((kStreamSharedBytes - shared_bytes) / kStageBytes,
                                                kMinStreamStages, kMaxStreamStages);
  shared_bytes += num_slots * kStageBytes;
  const int num_units = stream_groups(params.num_tiles) * kNumSlices;
  const int units = params.tiling.stream_units;
  launch("stream_rows", stream, stream_rows_kernel<Format, kColumns>,
         {.grid = {static_cast<unsigned>((num_units + units - 1) / units)},
          .block = {kStreamThreads + kWarpSize},
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .overlaps_previous = true,
          .lets_next_start_early = starts_next_early(params.finish.kind)},
         params, static_cast<int>(num_slots));
}

template <class Format>
void project_stream_as(Stream& stream, const ProjectionParams& params) {
  switch (params.tiling.stream_rows) {
    case 8:
      return launch_stream_rows<Format, 1>(stream, params);
    case 16:
      return launch_stream_rows<Format, 2>(stream, params);
    case 32:
      return launch_stream_rows<Format, 4>(stream, params);
    default:
      return launch_stream_rows<Format, 8>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
