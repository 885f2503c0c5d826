// The attention kernel: blocks take items until there are none, and run over each one's tiles, the
// next tiles under way while one is computed. What is there of the first ones before this pass's
// keys and values is on its way before the kernel waits for them. Where splits are shared out, the
// block that fills the last slot of a row and head joins them. Few pairs are computed by all warps
// together, each with some of the keys and then some of the columns; many by a warp for each 16.
// Both do the same arithmetic in the same order, as weights pass through shared memory or registers
// as they are.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/kernels/attention_tiles.cuh"
#include "cuda/kernels/projection.h"

namespace specdec::cuda::SPECDEC_TARGET {

// Of an item by row: the slots of its ancestors.
template <class Tiles>
__device__ __forceinline__ void list_ancestors(const AttentionParams& params, const BlockWork& work,
                                               const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
  const int row = item.plan.first_row + item.first_pair / work.shape.group_size;
  const uint64_t* mask =
      params.batch.ancestor_mask + static_cast<int64_t>(row) * params.batch.mask_words;
#pragma unroll 1
  for (int word = threadIdx.x; word * 64 < item.plan.num_tree_slots; word += kAttentionThreads) {
    int depth = 0;
#pragma unroll 1
    for (int before = 0; before < word; ++before) depth += __popcll(load_mask(mask + before));
    const int num_bits = min(64, item.plan.num_tree_slots - word * 64);
    uint64_t bits = load_mask(mask + word) & (~uint64_t{0} >> (64 - num_bits));
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
      memory.ancestors()[depth++] =
          static_cast<uint16_t>(word * 64 + __ffsll(static_cast<int64_t>(bits)) - 1);
    }
  }
}

// The ranges of an item's pairs.
template <class Tiles>
__device__ __forceinline__ void open_item(const AttentionParams& params, BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tiles::kPairs; i += kAttentionThreads) {
    // Beyond the last pair there is a copy of it, whose results are not written.
    const int pair = item.first_pair + min(i, item.num_pairs - 1);
    const int group_size = work.shape.group_size;
    const int row = pair / group_size;
    const int limit = row_limit(params, item.plan, row);
    memory.begins()[i] = row_begin(params, limit);
    memory.limits()[i] = limit;
    memory.places()[i] =
        row * work.shape.num_heads + item.kv_head * group_size + (pair - row * group_size);
  }
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  ItemRange range = {INT_MAX, 0, 0, INT_MAX};
#pragma unroll 1
  for (int i = threadIdx.x; i < Tiles::kPairs; i += kWarpSize) {
    range.begin = min(range.begin, memory.begins()[i]);
    range.limit = max(range.limit, memory.limits()[i]);
    range.common_begin = max(range.common_begin, memory.begins()[i]);
    range.common_limit = min(range.common_limit, memory.limits()[i]);
  }
#pragma unroll 1
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    range.begin = min(range.begin, __shfl_xor_sync(kAllLanes, range.begin, step));
    range.limit = max(range.limit, __shfl_xor_sync(kAllLanes, range.limit, step));
    range.common_begin =
        max(range.common_begin, __shfl_xor_sync(kAllLanes, range.common_begin, step));
    range.common_limit =
        min(range.common_limit, __shfl_xor_sync(kAllLanes, range.common_limit, step));
  }
  range.begin = max(range.begin, split_begin(item.split_first));
  range.limit = min(range.limit, split_begin(item.split_limit));
  if (threadIdx.x == 0) work.range = range;
}

// Writes down what is known of item work.next.
template <class Tiles>
__device__ __forceinline__ void keep_item(const AttendArgs& args, const BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  auto* kept =
      reinterpret_cast<uint32_t*>(static_cast<PlannedItem<Tiles>*>(args.planned_items) + work.next);
  const ItemWork& known = work;
  const auto* words = reinterpret_cast<const uint32_t*>(&known);
  constexpr int kWorkWords = sizeof(ItemWork) / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < kWorkWords; i += kAttentionThreads) kept[i] = words[i];
  const int* ranges = memory.begins();
#pragma unroll 1
  for (int i = threadIdx.x; i < 3 * Tiles::kPairs; i += kAttentionThreads) {
    kept[kWorkWords + i] = static_cast<uint32_t>(ranges[i]);
  }
}

// Reads it again.
template <class Tiles>
__device__ __forceinline__ void recall_item(const AttendArgs& args, BlockWork& work,
                                            const AttentionMemory<Tiles>& memory) {
  const auto* kept = reinterpret_cast<const uint32_t*>(
      static_cast<const PlannedItem<Tiles>*>(args.planned_items) + work.next);
  ItemWork& known = work;
  auto* words = reinterpret_cast<uint32_t*>(&known);
  int* ranges = memory.begins();
  constexpr int kWorkWords = sizeof(ItemWork) / 4;
#pragma unroll 2
  for (int i = threadIdx.x; i < kWorkWords + 3 * Tiles::kPairs; i += kAttentionThreads) {
    const uint32_t word = __ldcg(kept + i);
    if (i < kWorkWords) {
      words[i] = word;
    } else {
      ranges[i - kWorkWords] = static_cast<int>(word);
    }
  }
}

template <class Tiles>
__device__ __forceinline__ void begin_query_copy(const AttentionParams& params,
                                                 const BlockWork& work,
                                                 const AttentionMemory<Tiles>& memory) {
  using T = typename Tiles::Element;
  constexpr int kRowChunks = Tiles::kPaddedDim / kChunk;
  const Item& item = work.item;
  const int head_dim = params.kv.head_dim;
  const int64_t first = static_cast<int64_t>(item.plan.first_row) * work.shape.num_heads;
  const T* q = static_cast<const T*>(params.q);
#pragma unroll 1
  for (int i = threadIdx.x; i < Tiles::kPairs * kRowChunks; i += kAttentionThreads) {
    const int index = i / kRowChunks, chunk = i % kRowChunks;
    const int64_t place = first + memory.places()[index];
    const bool valid = index < item.num_pairs && chunk * kChunk < head_dim;
    ptx::copy_async_16(chunk_at(memory.query(), index, chunk, Tiles::kPaddedDim),
                       valid ? q + place * head_dim + chunk * kChunk : q, valid);
  }
}

template <class Tiles, int kWarpColumns>
__device__ __forceinline__ void run_item(const AttendArgs& args, const BlockWork& work,
                                         const AttentionMemory<Tiles>& memory) {
  constexpr int kAhead = Tiles::kStages - 1;  // tiles under way while one is computed
  const AttentionParams& params = args.params;
  WarpTile<Tiles, kWarpColumns> warp;
  warp.begin_item();
  const int first = work.range.begin / kAttentionTile;
  const int limit = (work.range.limit + kAttentionTile - 1) / kAttentionTile;
  RowFinder finder;
  float scale = 0.0f;
  int next_stage = kAhead;
  // `next` is the tile whose copy begins, from one before the first on, whose turn only looks up
  // where the first one's rows are.
#pragma unroll 1
  for (int next = first - 1; next < limit + kAhead; ++next) {
    const int tile = next - kAhead;  // that is computed
    const int stage = next_stage == kAhead ? 0 : next_stage + 1;
    if (next >= first) {
      finder.store(params, work, memory.rows(next_stage));
      if constexpr (Tiles::kIsInt8) {
        const int before = next_stage == 0 ? kAhead : next_stage - 1;
        if (next > first) memory.scales(before)[threadIdx.x] = scale;
      }
      if (tile == first) {
        ptx::copy_async_wait<0>();  // the query, too
      } else if (tile > first) {
        ptx::copy_async_wait<kAhead - 1>();
      }
      __syncthreads();
      if (next < limit) {
        if ((next + 1) * kAttentionTile > work.item.plan.base_len) ptx::wait_for_previous();
        begin_copy(memory, params.kv, next_stage);
        if constexpr (Tiles::kIsInt8) scale = load_scale(params.kv, memory.rows(next_stage));
      }
      if (next == first + kAhead - 1) {
        ptx::wait_for_previous();
        begin_query_copy(params, work, memory);
      }
      ptx::copy_async_commit();  // of nothing, too: groups are counted
    }
    finder.look_up(params, work, memory.ancestors(), next + 1);
    next_stage = stage;
    if (tile < first) continue;
    if constexpr (Tiles::kIsInt8) {
      unpack_tile(memory, stage);
      __syncthreads();
    }
    const int position = tile * kAttentionTile;
    warp.attend(memory, stage, position, work.range, args);
    const int split = split_of(position);
    const bool is_last = tile + 1 == limit;
    if (!is_last && split_of(position + kAttentionTile) == split) continue;
    warp.end_split(args.scale_log2);
    if (is_last || work.item.sharing == Sharing::kSplits) {
      warp.write(args, work.shape, work.item, memory, split);
      warp.begin_totals();
    }
    warp.begin_split();
  }
  ptx::copy_async_wait<0>();
}

// By a warp: joins the partial results of a row and head, num_slots of them from `slot` on, in
// their order. They come as asynchronous copies to the warp's part of the ring, many at a time,
// because what the warp waits for is latency. out: [head_dim].
template <class Tiles>
__device__ __forceinline__ void join_slots(const AttendArgs& args,
                                           const AttentionMemory<Tiles>& memory, int64_t slot,
                                           int num_slots, typename Tiles::Element* out) {
  using T = typename Tiles::Element;
  constexpr int kDim = Tiles::kPaddedDim;
  constexpr int kValues = kDim / kWarpSize;  // of a lane, side by side
  constexpr int kVector = kValues < 4 ? 2 : 4;
  using Vector = std::conditional_t<kVector == 2, float2, float4>;
  constexpr int kSlotBytes = kDim * 4;
  constexpr int kPartBytes = Tiles::kRingBytes / kAttentionWarps;
  constexpr int kSlots = kPartBytes / kSlotBytes / kWarpSize * kWarpSize;  // that come together
  static_assert(kSlots > 0);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  unsigned char* part_of_ring = memory.ring() + warp * kSlots * kSlotBytes;
  // Of each of 32 slots: what totals are multiplied with, what its values are, and its sum.
  float* factors = reinterpret_cast<float*>(memory.weights()) + warp * 3 * kWarpSize;
  float totals[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) totals[i] = 0.0f;
  float total_maximum = -INFINITY, total_sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < num_slots; first += kWarpSize) {
    if (first % kSlots == 0) {
      const int num_chunks = min(kSlots, num_slots - first) * (kSlotBytes / kChunkBytes);
      const char* from =
          reinterpret_cast<const char*>(args.workspace.values + (slot + first) * kDim);
#pragma unroll 4
      for (int i = lane; i < num_chunks; i += kWarpSize) {
        ptx::copy_async_16(part_of_ring + i * kChunkBytes, from + i * kChunkBytes);
      }
      ptx::copy_async_commit();
    }
    const int count = min(kWarpSize, num_slots - first);
    float2 part = make_float2(-INFINITY, 0.0f);
    if (lane < count) {
      part = *reinterpret_cast<const float2*>(args.workspace.sums + (slot + first + lane) * 2);
    }
    // The maximum after each slot, and what its join multiplies with.
    float maximum = fmaxf(total_maximum, part.x);
#pragma unroll 1
    for (int step = 1; step < kWarpSize; step *= 2) {
      const float below = __shfl_up_sync(kAllLanes, maximum, step);
      if (lane >= step) maximum = fmaxf(maximum, below);
    }
    float before = __shfl_up_sync(kAllLanes, maximum, 1);
    if (lane == 0) before = total_maximum;
    factors[3 * lane] = decay(before, maximum, args.scale_log2);
    factors[3 * lane + 1] = decay(part.x, maximum, args.scale_log2);
    factors[3 * lane + 2] = part.y;
    total_maximum = __shfl_sync(kAllLanes, maximum, kWarpSize - 1);
    ptx::copy_async_wait<0>();
    __syncwarp();
    const float* values =
        reinterpret_cast<const float*>(part_of_ring + first % kSlots * kSlotBytes) + lane * kValues;
#pragma unroll 2
    for (int j = 0; j < count; ++j) {
      const float a = factors[3 * j], b = factors[3 * j + 1];
      total_sum = join(total_sum, a, factors[3 * j + 2], b);
      alignas(Vector) float read[kValues];
#pragma unroll
      for (int i = 0; i < kValues; i += kVector) {
        *reinterpret_cast<Vector*>(read + i) =
            *reinterpret_cast<const Vector*>(values + j * kDim + i);
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) totals[i] = join(totals[i], a, read[i], b);
    }
    __syncwarp();  // factors and values are read
  }
  const float inverse = inverse_of(total_sum);
#pragma unroll
  for (int i = 0; i < kValues; i += 2) {
    const int column = lane * kValues + i;
    const uint32_t words = pack<T>(finished(totals[i], inverse), finished(totals[i + 1], inverse));
    if (column < args.params.kv.head_dim) *reinterpret_cast<uint32_t*>(out + column) = words;
  }
}

// Counts the slots that an item filled, and joins those of every row and head that has all of them
// now. Every thread of the block calls it.
template <class Tiles>
__device__ __forceinline__ void join_item(const AttendArgs& args, const BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  using T = typename Tiles::Element;
  const Item& item = work.item;
  const WorkShape& shape = work.shape;
  static_assert(Tiles::kPairs <= kAttentionThreads && Tiles::kPairs <= 64);
  int* num_slots = reinterpret_cast<int*>(memory.maxima());  // [pairs]; 0: not to be joined
  const auto first_column = [&](int pair) {
    return shape.column_of(item.plan, item.sharing, split_of(memory.begins()[pair]));
  };
  const auto slot_of = [&](int pair) {
    return item.slot - item.column + memory.places()[pair] * item.num_columns;
  };
  __syncthreads();  // the slots are filled
  if (static_cast<int>(threadIdx.x) < item.num_pairs) {
    const int pair = threadIdx.x;
    const int first = first_column(pair);
    const int count =
        shape.column_of(item.plan, item.sharing, split_of(memory.limits()[pair] - 1)) + 1 - first;
    const int num_filled = min(first + count, item.column + item.num_filled()) -
                           max(first, item.column);  // of those that the pair sees
    num_slots[pair] = 0;
    if (memory.begins()[pair] < memory.limits()[pair] && num_filled > 0) {
      uint32_t* arrivals = args.workspace.arrivals + slot_of(pair);
      const auto added = static_cast<uint32_t>(num_filled);
      if (ptx::add_acquire_release(arrivals, added) + added == static_cast<uint32_t>(count)) {
        *arrivals = 0;
        num_slots[pair] = count;
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int pair = threadIdx.x / kWarpSize; pair < item.num_pairs; pair += kAttentionWarps) {
    if (num_slots[pair] == 0) continue;
    const int64_t place =
        static_cast<int64_t>(item.plan.first_row) * shape.num_heads + memory.places()[pair];
    join_slots<Tiles>(args, memory, slot_of(pair) + first_column(pair), num_slots[pair],
                      static_cast<T*>(args.params.out) + place * args.params.kv.head_dim);
  }
}

// Zeros for the rows of no request.
template <class T>
__device__ __forceinline__ void clear_unused_rows(const AttentionParams& params) {
  const int row_words = params.num_heads * params.kv.head_dim / 2;
  const int begin = params.batch.cu_rows[params.batch.num_requests];
  auto* out = static_cast<uint32_t*>(params.out) + static_cast<int64_t>(begin) * row_words;
  const int num_words = (params.batch.num_rows - begin) * row_words;
#pragma unroll 1
  for (int i = blockIdx.x * kAttentionThreads + threadIdx.x; i < num_words;
       i += gridDim.x * kAttentionThreads) {
    out[i] = 0;
  }
}

// By a block: the item work.next, as its layer works it out or as the pass's plan has it.
template <class Tiles, bool kIsPlanned>
__device__ __forceinline__ void take_item(const AttendArgs& args, BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  if constexpr (kIsPlanned) {
    recall_item(args, work, memory);
  } else if (threadIdx.x == 0) {
    work.item =
        item_at(args.params, work.shape, memory.item_ends(), memory.slot_begins(), work.next);
  }
  __syncthreads();
  if constexpr (!kIsPlanned) open_item(args.params, work, memory);
  if (work.item.by_row) list_ancestors(args.params, work, memory);
  __syncthreads();
}

// By a block: how many items there are, and the one it begins with.
template <class Tiles, bool kIsPlanned>
__device__ __forceinline__ int take_work(const AttendArgs& args, BlockWork& work,
                                         const AttentionMemory<Tiles>& memory) {
  if constexpr (kIsPlanned) {
    if (threadIdx.x == 0) work.next = static_cast<int>(blockIdx.x);
    const int num_items = __ldcg(args.num_planned);
    __syncthreads();
    return num_items;
  }
  if (threadIdx.x < kWarpSize) {
    WorkShape shape = work_shape(args.params, Tiles::kPairBits);
    plan_work(args, shape, memory.item_ends(), memory.slot_begins());
    if (threadIdx.x == 0) {
      work.shape = shape;
      work.next = static_cast<int>(blockIdx.x);
    }
  }
  __syncthreads();
  return memory.num_requests > 0 ? memory.item_ends()[memory.num_requests - 1] : 0;
}

// kIsPlanned: a launch before this one in the same pass has written down who computes what.
template <class Tiles, bool kIsPlanned>
__global__ void __launch_bounds__(kAttentionThreads, Tiles::kRegisterBlocks)
    attend_kernel(const AttendArgs args) {
  SPECDEC_SHARED_BYTES(shared);
  __shared__ BlockWork work;
  ptx::let_next_start();
  const AttentionMemory<Tiles> memory = {shared, args.params.batch.num_requests};
  const int num_items = take_work<Tiles, kIsPlanned>(args, work, memory);
  const bool in_turn = num_items > static_cast<int>(gridDim.x);
#pragma unroll 1
  while (work.next < num_items) {
    int next = num_items;  // wanted only when this one is done
    take_item<Tiles, kIsPlanned>(args, work, memory);
    if (work.range.begin < work.range.limit) {
      const int num_pairs = work.item.num_pairs;
      if constexpr (Tiles::kIsFew) {
        run_item<Tiles, kAttentionWarps / Tiles::kMostWarpRows>(args, work, memory);
      } else if (num_pairs <= 16) {
        run_item<Tiles, kAttentionWarps>(args, work, memory);
      } else if (Tiles::kMostWarpRows == 2 || num_pairs <= 32) {
        run_item<Tiles, kAttentionWarps / 2>(args, work, memory);
      } else if constexpr (Tiles::kMostWarpRows == 4) {
        run_item<Tiles, 1>(args, work, memory);
      }
      if (work.item.slot >= 0) join_item(args, work, memory);
    }
    if constexpr (Tiles::kIsFew && !kIsPlanned) {
      if (args.num_planned != nullptr) {
        ptx::wait_for_previous();  // layers of the pass before read the plan
        keep_item(args, work, memory);
      }
    }
    if (in_turn && threadIdx.x == 0) {
      ptx::wait_for_previous();
      next = static_cast<int>(gridDim.x + atomicAdd(args.workspace.counters, 1u));
    }
    __syncthreads();
    if (threadIdx.x == 0) work.next = next;
    __syncthreads();
  }
  ptx::wait_for_previous();
  if constexpr (Tiles::kIsFew && !kIsPlanned) {
    const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
    if (args.num_planned != nullptr && is_first) *args.num_planned = num_items;
  }
  clear_unused_rows<typename Tiles::Element>(args.params);
  if (in_turn && threadIdx.x == 0 && atomicAdd(args.workspace.counters + 1, 1u) == gridDim.x - 1) {
    args.workspace.counters[0] = args.workspace.counters[1] = 0;
  }
}

// The same places for all launches, whatever their rows and heads: counts are zero where another
// launch may look for them.
inline AttentionWorkspace share_workspace(const AttentionParams& params, int padded_dim) {
  constexpr size_t kCounterBytes = 256;
  const auto round_down = [](size_t bytes) { return bytes / 256 * 256; };
  char* base = static_cast<char*>(params.workspace);
  const size_t arrival_bytes = round_down(params.workspace_bytes / 64);
  const size_t used = 2 * kCounterBytes + arrival_bytes;
  AttentionWorkspace workspace;
  workspace.counters = reinterpret_cast<uint32_t*>(base);
  workspace.arrivals = reinterpret_cast<uint32_t*>(base + kCounterBytes);
  const size_t slot_bytes = (padded_dim + 2) * sizeof(float);
  const size_t fitting =
      used < params.workspace_bytes ? (params.workspace_bytes - used) / slot_bytes : 0;
  workspace.capacity = static_cast<int64_t>(std::min(fitting, arrival_bytes / sizeof(uint32_t)));
  char* slots = base + kCounterBytes + arrival_bytes;
  workspace.sums = reinterpret_cast<float*>(slots);
  workspace.values =
      reinterpret_cast<float*>(slots + (workspace.capacity * 2 * sizeof(float) + 255) / 256 * 256);
  return workspace;
}

// Of one launch, as a block has 8 bytes of shared memory for each; others are launched after them.
constexpr int kMostRequests = 960;
constexpr int kMostMaskWords = 32;  // trees of 2,048 slots

// `count` requests from `begin` on. Rows keep their numbers.
inline BatchView requests_from(BatchView batch, int64_t begin, int count) {
  batch.num_requests = count;
  batch.cu_rows += begin;
  batch.base_lens += begin;
  batch.block_tables += begin * batch.max_blocks_per_request;
  if (batch.is_tree != nullptr) batch.is_tree += begin;
  if (batch.num_tree_slots != nullptr) batch.num_tree_slots += begin;
  return batch;
}

// Of the blocks for few rows on a multiprocessor and of a product's block beside them.
template <class Tiles>
constexpr int64_t shared_bytes_with_product() {
  return Tiles::kBlocksPerSm *
             (Tiles::shared_bytes(kFewAttentionRows, kMostMaskWords) + kBlockExtraSharedBytes) +
         kMostFewRowsBytes + kBlockExtraSharedBytes;
}

template <class Tiles>
int shared_bytes_of(const BatchView& batch) {
  return Tiles::shared_bytes(batch.num_requests,
                             batch.ancestor_mask != nullptr ? batch.mask_words : 0);
}

// Items that there may be, whatever the lengths: WorkShape. An item of shared splits has a block's
// share of all tiles, but the last one of each list.
template <class Tiles>
int64_t most_items(const AttentionParams& params) {
  const BatchView& batch = params.batch;
  const auto pair_tiles = [](int64_t pairs) { return (pairs + Tiles::kPairs - 1) / Tiles::kPairs; };
  const int64_t rows = batch.num_rows;
  const int64_t group_size = params.num_heads / params.kv.num_kv_heads;
  const int64_t num_blocks = int64_t{params.num_multiprocessors} * Tiles::kBlocksPerSm;
  const int64_t lists = rows * group_size / Tiles::kPairs + batch.num_requests;
  const bool may_have_trees = batch.ancestor_mask != nullptr;
  const int64_t tail_splits = may_have_trees ? batch.mask_words * 64 / kShortSplit + 2 : 0;
  const int64_t tails = rows * pair_tiles(group_size) * tail_splits;
  return num_blocks + params.kv.num_kv_heads * (lists + tails);
}

constexpr size_t kPlanHeaderBytes = 256;

// Whether a pass's plan is written down. Prompts plan in every layer: beside them it is nothing.
template <class Tiles>
bool keeps_plan(const AttentionParams& params) {
  if (!Tiles::kIsFew || params.plan.memory == nullptr) return false;
  const auto most = static_cast<size_t>(most_items<Tiles>(params));
  return kPlanHeaderBytes + most * sizeof(PlannedItem<Tiles>) <= params.plan.size_bytes;
}

template <class Tiles>
void launch_requests(Stream& stream, const AttentionParams& params) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const bool keeps = keeps_plan<Tiles>(params);
  char* plan = static_cast<char*>(params.plan.memory);
  const AttendArgs args = {.params = params,
                           .workspace = share_workspace(params, Tiles::kPaddedDim),
                           .scale_log2 = params.scale * kLog2E,
                           .score_limit = params.soft_cap / params.scale,
                           .num_planned = keeps ? reinterpret_cast<int*>(plan) : nullptr,
                           .planned_items = keeps ? plan + kPlanHeaderBytes : nullptr};
  const auto num_blocks = static_cast<unsigned>(params.num_multiprocessors * Tiles::kBlocksPerSm);
  const LaunchConfig config = {
      .grid = {num_blocks},
      .block = {kAttentionThreads},
      .shared_bytes = static_cast<size_t>(shared_bytes_of<Tiles>(params.batch)),
      .overlaps_previous = true,
      .lets_next_start_early = true,
      .reads_before_wait = true};
  if constexpr (Tiles::kIsFew) {
    void (*reader)(AttendArgs) = attend_kernel<Tiles, true>;
    if (keeps && params.plan.is_made) {
      return launch(Tiles::kPlannedName, stream, reader, config, args);
    }
    // The next layer's launch may be the first one in a capture, which could not load it.
    if (keeps && !stream.is_capturing()) {
      stream.prepare({.name = Tiles::kPlannedName,
                      .config = config,
                      .function = reinterpret_cast<const void*>(reader)});
    }
  }
  launch(Tiles::kName, stream, attend_kernel<Tiles, false>, config, args);
}

template <class T, int kDim, bool kCodes>
void launch_attention(Stream& stream, const AttentionParams& params) {
  using One = AttentionTiles<T, kDim, kCodes, 1>;
  using Two = AttentionTiles<T, kDim, kCodes, 2>;
  using Four = AttentionTiles<T, kDim, kCodes, 4>;
  static_assert(Four::shared_bytes(kMostRequests, kMostMaskWords) <= attention_shared_bytes(kDim));
  static_assert(shared_bytes_with_product<One>() <= kMultiprocessorSharedBytes);
  static_assert(shared_bytes_with_product<Two>() <= kMultiprocessorSharedBytes);
  const int group_size = params.num_heads / params.kv.num_kv_heads;
  // Of a request; one where none speculates.
  const int most_rows = params.batch.num_rows - params.batch.num_requests + 1;
  AttentionParams turn = params;
  int begin = 0;
  do {  // without requests, too: all rows become zeros
    const int left = params.batch.num_requests - begin;
    turn.batch = requests_from(params.batch, begin, left < kMostRequests ? left : kMostRequests);
    if (params.batch.num_requests > kMostRequests) turn.plan = {};  // a plan is that of one launch
    const bool is_few = params.batch.num_rows <= kFewAttentionRows && params.soft_cap == 0.0f;
    if (is_few && most_rows * group_size <= 16 &&
        shared_bytes_of<One>(turn.batch) <= params.max_shared_bytes) {
      launch_requests<One>(stream, turn);
    } else if (is_few && shared_bytes_of<Two>(turn.batch) <= params.max_shared_bytes) {
      launch_requests<Two>(stream, turn);
    } else {
      launch_requests<Four>(stream, turn);
    }
    begin += kMostRequests;
  } while (begin < params.batch.num_requests);
}

template <class T, bool kCodes>
void launch_attention_by_dim(Stream& stream, const AttentionParams& params) {
  if (params.kv.head_dim <= 64) {
    launch_attention<T, 64, kCodes>(stream, params);
  } else if (params.kv.head_dim <= 128) {
    launch_attention<T, 128, kCodes>(stream, params);
  } else {
    launch_attention<T, 256, kCodes>(stream, params);
  }
}

template <class T>
void launch_attention_for(Stream& stream, const AttentionParams& params) {
  if (params.kv.dtype == DType::kI8) {
    launch_attention_by_dim<T, true>(stream, params);
  } else {
    launch_attention_by_dim<T, false>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
