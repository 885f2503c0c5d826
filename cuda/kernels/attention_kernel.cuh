// The attention kernel. Blocks take items until none are left. A block runs over the tiles of an
// item and computes one while the next are loaded. It loads the cached part of the first tiles
// before it waits for this pass's keys and values. Where splits are shared among blocks, the block
// that writes the last partial result of a row and head joins them all.
//
// Few pairs are computed by all warps together, each with some of the keys and then some of the
// columns; many pairs by one warp per 16, but for heads of more than 256. Both do the same
// arithmetic in the same order, because weights pass unchanged, through shared memory or registers.
#pragma once

#include <type_traits>

#include "cuda/kernels/attention_warp.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Lists the ancestors of an item's tree row, as offsets from base_len.
template <class Tiles>
__device__ __forceinline__ void list_ancestors(const AttentionParams& params, const BlockWork& work,
                                               const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
  const int row = item.extent.first_row + item.first_pair / work.shape.group_size;
  const uint64_t* mask =
      params.batch.ancestor_mask + static_cast<int64_t>(row) * params.batch.mask_words;
#pragma unroll 1
  for (int word = threadIdx.x; word * 64 < item.extent.num_tree_slots; word += Tiles::kThreads) {
    int depth = 0;
#pragma unroll 1
    for (int before = 0; before < word; ++before) depth += __popcll(load_mask(mask + before));
    const int num_bits = min(64, item.extent.num_tree_slots - word * 64);
    uint64_t bits = load_mask(mask + word) & (~uint64_t{0} >> (64 - num_bits));
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
      memory.ancestors()[depth++] =
          static_cast<uint16_t>(word * 64 + __ffsll(static_cast<int64_t>(bits)) - 1);
    }
  }
}

// Works out the ranges of an item's pairs.
template <class Tiles>
__device__ __forceinline__ void open_item(const AttentionParams& params, BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tiles::kPairs; i += Tiles::kThreads) {
    // Indices past the last pair repeat that pair; their results are not written.
    const int pair = item.first_pair + min(i, item.num_pairs - 1);
    const int group_size = work.shape.group_size;
    const int row = pair / group_size;
    const int limit = row_limit(params, item.extent, row);
    memory.begins()[i] = row_begin(params, limit);
    memory.limits()[i] = limit;
    memory.row_heads()[i] =
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
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    range.begin = min(range.begin, __shfl_xor_sync(kAllLanes, range.begin, distance));
    range.limit = max(range.limit, __shfl_xor_sync(kAllLanes, range.limit, distance));
    range.common_begin =
        max(range.common_begin, __shfl_xor_sync(kAllLanes, range.common_begin, distance));
    range.common_limit =
        min(range.common_limit, __shfl_xor_sync(kAllLanes, range.common_limit, distance));
  }
  range.begin = max(range.begin, split_begin(item.split_first));
  range.limit = min(range.limit, split_begin(item.split_limit));
  if (threadIdx.x == 0) work.range = range;
}

// Writes item work.next to the work list.
template <class Tiles>
__device__ __forceinline__ void keep_item(const AttendArgs& args, const BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  auto* kept =
      reinterpret_cast<uint32_t*>(static_cast<StoredItem<Tiles>*>(args.stored_items) + work.next);
  const ItemWork& known = work;
  const auto* words = reinterpret_cast<const uint32_t*>(&known);
  constexpr int kWorkWords = sizeof(ItemWork) / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < kWorkWords; i += Tiles::kThreads) kept[i] = words[i];
  const int* ranges = memory.begins();
#pragma unroll 1
  for (int i = threadIdx.x; i < 3 * Tiles::kPairs; i += Tiles::kThreads) {
    kept[kWorkWords + i] = static_cast<uint32_t>(ranges[i]);
  }
}

// Reads item work.next from the work list.
template <class Tiles>
__device__ __forceinline__ void recall_item(const AttendArgs& args, BlockWork& work,
                                            const AttentionMemory<Tiles>& memory) {
  const auto* kept = reinterpret_cast<const uint32_t*>(
      static_cast<const StoredItem<Tiles>*>(args.stored_items) + work.next);
  ItemWork& known = work;
  auto* words = reinterpret_cast<uint32_t*>(&known);
  int* ranges = memory.begins();
  constexpr int kWorkWords = sizeof(ItemWork) / 4;
#pragma unroll 2
  for (int i = threadIdx.x; i < kWorkWords + 3 * Tiles::kPairs; i += Tiles::kThreads) {
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
  const int64_t first = static_cast<int64_t>(item.extent.first_row) * work.shape.num_heads;
  const T* q = static_cast<const T*>(params.q);
#pragma unroll 1
  for (int i = threadIdx.x; i < Tiles::kPairs * kRowChunks; i += Tiles::kThreads) {
    const int index = i / kRowChunks, chunk = i % kRowChunks;
    const int64_t row_head = first + memory.row_heads()[index];
    const bool valid = index < item.num_pairs && chunk * kChunk < head_dim;
    ptx::copy_async_16(chunk_at(memory.query(), index, chunk, Tiles::kPaddedDim),
                       valid ? q + row_head * head_dim + chunk * kChunk : q, valid);
  }
}

template <class Tiles, int kWarpColumns>
__device__ __forceinline__ void run_item(const AttendArgs& args, const BlockWork& work,
                                         const AttentionMemory<Tiles>& memory) {
  constexpr int kTile = Tiles::kTile;
  constexpr int kAhead = Tiles::kStages - 1;  // tiles in flight while one is computed
  const AttentionParams& params = args.params;
  WarpTile<Tiles, kWarpColumns> warp;
  warp.begin_item();
  const int first = work.range.begin / kTile;
  const int limit = (work.range.limit + kTile - 1) / kTile;
  RowFinder<kTile> finder;
  float scale = 0.0f;
  int next_stage = kAhead;
  // `next` is the tile whose copy begins. The loop starts one tile early, with an iteration that
  // only looks up the cache rows of the first tile.
#pragma unroll 1
  for (int next = first - 1; next < limit + kAhead; ++next) {
    const int tile = next - kAhead;  // the tile that is computed
    const int stage = next_stage == kAhead ? 0 : next_stage + 1;
    if (next >= first) {
      finder.store(params, work, memory.rows(next_stage));
      if constexpr (Tiles::kIsInt8) {
        const int before = next_stage == 0 ? kAhead : next_stage - 1;
        if (next > first && has_scale<Tiles>()) memory.scales(before)[threadIdx.x] = scale;
      }
      if (tile == first) {
        ptx::copy_async_wait<0>();  // includes the query
      } else if (tile > first) {
        ptx::copy_async_wait<kAhead - 1>();
      }
      __syncthreads();
      if (next < limit) {
        if ((next + 1) * kTile > work.item.extent.base_len) ptx::wait_for_previous();
        begin_copy(memory, params.kv, next_stage);
        if constexpr (Tiles::kIsInt8) scale = load_scale<Tiles>(params.kv, memory.rows(next_stage));
      }
      if (next == first + kAhead - 1) {
        ptx::wait_for_previous();
        begin_query_copy(params, work, memory);
      }
      ptx::copy_async_commit();  // an empty group, too: waits count groups
    }
    finder.look_up(params, work, memory.ancestors(), next + 1);
    next_stage = stage;
    if (tile < first) continue;
    if constexpr (Tiles::kIsInt8) {
      unpack_tile(memory, stage);
      __syncthreads();
    }
    const int position = tile * kTile;
    warp.attend(memory, stage, position, work.range, args);
    const int split = split_of(position);
    const bool is_last = tile + 1 == limit;
    if (!is_last && split_of(position + kTile) == split) continue;
    warp.end_split(args.scale_log2);
    if (is_last || work.item.sharing == Sharing::kSplits) {
      warp.write(args, work.shape, work.item, memory, split);
      warp.begin_totals();
    }
    warp.begin_split();
  }
  ptx::copy_async_wait<0>();
}

// Joins the partial results of an item's pairs, num_partials[pair] each, where that is not 0. Each
// warp takes every kWarps-th pair. Joining is bound by latency, so a warp loads as many partial
// results as it has lanes, or room for, together, of several pairs or a part of one's, and works
// out all their factors at once. Results are joined in order, whatever was loaded together.
//   first_of(pair): its first partial result
template <class Tiles, class FirstOf>
__device__ __forceinline__ void join_pairs(const AttendArgs& args, const BlockWork& work,
                                           const AttentionMemory<Tiles>& memory,
                                           const int* num_partials, FirstOf&& first_of) {
  using T = typename Tiles::Element;
  constexpr int kDim = Tiles::kPaddedDim;
  constexpr int kValues = kDim / kWarpSize;  // consecutive values of a lane
  constexpr int kVector = kValues < 4 ? 2 : 4;
  using Vector = std::conditional_t<kVector == 2, float2, float4>;
  constexpr int kPartialBytes = kDim * 4;
  constexpr int kPartialChunks = kPartialBytes / kChunkBytes;
  // Partial results that a warp loads together.
  constexpr int kFitting = Tiles::kRingBytes / (Tiles::kWarps * kPartialBytes);
  constexpr int kLoads = kFitting < kWarpSize ? kFitting : kWarpSize;
  static_assert(Tiles::kThreads * sizeof(float4) <= Tiles::kMaxima - Tiles::kWeights);
  const Item& item = work.item;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  unsigned char* loaded = memory.ring() + warp * kLoads * kPartialBytes;
  // Of each partial result: the factor of the totals before it, the factor of its values, its sum,
  // and the maximum with it.
  float4* factors = reinterpret_cast<float4*>(memory.weights()) + warp * kWarpSize;
  float totals[kValues] = {};
  float total_maximum = -INFINITY, total_sum = 0.0f;
  int pair = warp;
  int num_joined = 0;  // of the pair's partial results
#pragma unroll 1
  while (pair < item.num_pairs) {
    int64_t own = -1;   // the partial result whose sums the lane loads
    int own_first = 0;  // the lane that has the first one of the same pair
    int num_loaded = 0, num_before = num_joined, end = pair;
#pragma unroll 1
    for (; end < item.num_pairs && num_loaded < kLoads; end += Tiles::kWarps) {
      const int left = num_partials[end] - num_before;
      const int count = min(left, kLoads - num_loaded);
      const int64_t first = first_of(end) + num_before;
      const char* from = reinterpret_cast<const char*>(args.workspace.values + first * kDim);
      unsigned char* to = loaded + num_loaded * kPartialBytes;
#pragma unroll 4
      for (int i = lane; i < count * kPartialChunks; i += kWarpSize) {
        ptx::copy_async_16(to + i * kChunkBytes, from + i * kChunkBytes);
      }
      if (lane >= num_loaded && lane < num_loaded + count) {
        own = first + lane - num_loaded;
        own_first = num_loaded;
      }
      num_loaded += count;
      if (count < left) break;
      num_before = 0;
    }
    ptx::copy_async_commit();
    float2 part = make_float2(-INFINITY, 0.0f);
    if (own >= 0) part = *reinterpret_cast<const float2*>(args.workspace.sums + own * 2);
    // The maximum after each partial result.
    const float before_all = num_joined > 0 && own_first == 0 ? total_maximum : -INFINITY;
    float maximum = fmaxf(before_all, part.x);
#pragma unroll 1
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float below = __shfl_up_sync(kAllLanes, maximum, distance);
      if (lane - distance >= own_first) maximum = fmaxf(maximum, below);
    }
    float before = __shfl_up_sync(kAllLanes, maximum, 1);
    if (lane == own_first) before = before_all;
    factors[lane] = make_float4(decay(before, maximum, args.scale_log2),
                                decay(part.x, maximum, args.scale_log2), part.y, maximum);
    total_maximum = __shfl_sync(kAllLanes, maximum, kLoads - 1);
    ptx::copy_async_wait<0>();
    __syncwarp();
    const float* values = reinterpret_cast<const float*>(loaded) + lane * kValues;
    int slot = 0;
#pragma unroll 1
    while (slot < num_loaded) {
      const int count = num_partials[pair];
      const int slot_end = min(slot + count - num_joined, num_loaded);
      num_joined += slot_end - slot;
#pragma unroll 4
      for (; slot < slot_end; ++slot) {
        const float4 factor = factors[slot];
        total_sum = join(total_sum, factor.x, factor.z, factor.y);
        alignas(Vector) float read[kValues];
#pragma unroll
        for (int i = 0; i < kValues; i += kVector) {
          *reinterpret_cast<Vector*>(read + i) =
              *reinterpret_cast<const Vector*>(values + slot * kDim + i);
        }
#pragma unroll
        for (int i = 0; i < kValues; ++i) totals[i] = join(totals[i], factor.x, read[i], factor.y);
      }
      if (num_joined < count) break;  // the rest is loaded next
      if (count > 0) {
        const int own_row_head = memory.row_heads()[pair];
        const float inverse =
            normaliser(args, work.shape, own_row_head, factors[slot - 1].w, total_sum);
        const int64_t row_head =
            static_cast<int64_t>(item.extent.first_row) * work.shape.num_heads + own_row_head;
        const int head_dim = args.params.kv.head_dim;
        T* out = static_cast<T*>(args.params.out) + row_head * head_dim;
#pragma unroll
        for (int i = 0; i < kValues; i += 2) {
          const int column = lane * kValues + i;
          const uint32_t words =
              pack<T>(finished(totals[i], inverse), finished(totals[i + 1], inverse));
          if (column < head_dim) *reinterpret_cast<uint32_t*>(out + column) = words;
        }
      }
      total_sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kValues; ++i) totals[i] = 0.0f;
      num_joined = 0;
      pair += Tiles::kWarps;
    }
    if (num_loaded == 0) pair = end;
    __syncwarp();  // factors and values are read
  }
}

// Counts the partial results that an item wrote, and joins those of every row and head that are now
// complete. Every thread of the block calls it.
template <class Tiles>
__device__ __forceinline__ void join_item(const AttendArgs& args, const BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
  const WorkShape& shape = work.shape;
  static_assert(Tiles::kPairs <= Tiles::kThreads && Tiles::kPairs <= 64);
  int* num_partials = reinterpret_cast<int*>(memory.maxima());  // [pairs]; 0: not to be joined
  const auto first_column = [&](int pair) {
    return shape.column_of(item.extent, item.sharing, split_of(memory.begins()[pair]));
  };
  const auto partial_of = [&](int pair) {
    return item.partial - item.column + memory.row_heads()[pair] * item.num_columns;
  };
  __syncthreads();  // the partial results are written
  if (static_cast<int>(threadIdx.x) < item.num_pairs) {
    const int pair = threadIdx.x;
    const int first = first_column(pair);
    const int count =
        shape.column_of(item.extent, item.sharing, split_of(memory.limits()[pair] - 1)) + 1 - first;
    const int num_filled = min(first + count, item.column + item.num_filled()) -
                           max(first, item.column);  // of the pair's partial results
    num_partials[pair] = 0;
    if (memory.begins()[pair] < memory.limits()[pair] && num_filled > 0) {
      uint32_t* arrivals = args.workspace.arrivals + partial_of(pair);
      const auto added = static_cast<uint32_t>(num_filled);
      if (ptx::add_acquire_release(arrivals, added) + added == static_cast<uint32_t>(count)) {
        *arrivals = 0;
        num_partials[pair] = count;
      }
    }
  }
  __syncthreads();
  join_pairs(args, work, memory, num_partials,
             [&](int pair) -> int64_t { return partial_of(pair) + first_column(pair); });
}

// Writes zeros to the rows of no request.
template <class Tiles>
__device__ __forceinline__ void clear_unused_rows(const AttentionParams& params) {
  const int row_words = params.num_heads * params.kv.head_dim / 2;
  const int begin = params.batch.cu_rows[params.batch.num_requests];
  auto* out = static_cast<uint32_t*>(params.out) + static_cast<int64_t>(begin) * row_words;
  const int num_words = (params.batch.num_rows - begin) * row_words;
#pragma unroll 1
  for (int i = blockIdx.x * Tiles::kThreads + threadIdx.x; i < num_words;
       i += gridDim.x * Tiles::kThreads) {
    out[i] = 0;
  }
}

// The block takes item work.next: works it out, or reads it from the work list.
template <class Tiles, bool kReadsList>
__device__ __forceinline__ void take_item(const AttendArgs& args, BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  if constexpr (kReadsList) {
    recall_item(args, work, memory);
  } else if (threadIdx.x == 0) {
    work.item =
        item_at(args.params, work.shape, memory.item_ends(), memory.partial_begins(), work.next);
  }
  __syncthreads();
  if constexpr (!kReadsList) open_item(args.params, work, memory);
  if (work.item.by_row) list_ancestors(args.params, work, memory);
  __syncthreads();
}

// Sets work.next to the block's first item and returns the number of all items.
template <class Tiles, bool kReadsList>
__device__ __forceinline__ int take_work(const AttendArgs& args, BlockWork& work,
                                         const AttentionMemory<Tiles>& memory) {
  if constexpr (kReadsList) {
    if (threadIdx.x == 0) work.next = static_cast<int>(blockIdx.x);
    const int num_items = __ldcg(args.num_stored);
    __syncthreads();
    return num_items;
  }
  if (threadIdx.x < kWarpSize) {
    WorkShape shape = work_shape(args.params, Tiles::kPairBits);
    list_work(args, shape, memory.item_ends(), memory.partial_begins());
    if (threadIdx.x == 0) {
      work.shape = shape;
      work.next = static_cast<int>(blockIdx.x);
    }
  }
  __syncthreads();
  return memory.num_requests > 0 ? memory.item_ends()[memory.num_requests - 1] : 0;
}

// kReadsList: an earlier launch of the same pass has written the work list.
template <class Tiles, bool kReadsList>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kRegisterBlocks)
    attend_kernel(const AttendArgs args) {
  SPECDEC_SHARED_BYTES(shared);
  __shared__ BlockWork work;
  ptx::let_next_start();
  const AttentionMemory<Tiles> memory = {shared, args.params.batch.num_requests};
  const int num_items = take_work<Tiles, kReadsList>(args, work, memory);
  const bool in_turn = num_items > static_cast<int>(gridDim.x);
#pragma unroll 1
  while (work.next < num_items) {
    int next = num_items;  // looked up only when this item is done
    take_item<Tiles, kReadsList>(args, work, memory);
    if (work.range.begin < work.range.limit) {
      const int num_pairs = work.item.num_pairs;
      if constexpr (Tiles::kIsFew) {
        run_item<Tiles, Tiles::kWarps / Tiles::kMostWarpRows>(args, work, memory);
      } else if (num_pairs <= 16) {
        run_item<Tiles, Tiles::kWarps>(args, work, memory);
      } else if (Tiles::kMostWarpRows == 2 || num_pairs <= 32) {
        run_item<Tiles, Tiles::kWarps / 2>(args, work, memory);
      } else if constexpr (Tiles::kMostWarpRows == 4) {
        run_item<Tiles, 1>(args, work, memory);
      }
      if (work.item.partial >= 0) join_item(args, work, memory);
    }
    if constexpr (Tiles::kIsFew && !kReadsList) {
      if (args.num_stored != nullptr) {
        ptx::wait_for_previous();  // layers of the previous pass may read the list
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
  if constexpr (Tiles::kIsFew && !kReadsList) {
    const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
    if (args.num_stored != nullptr && is_first) *args.num_stored = num_items;
  }
  clear_unused_rows<Tiles>(args.params);
  if (in_turn && threadIdx.x == 0 && atomicAdd(args.workspace.counters + 1, 1u) == gridDim.x - 1) {
    args.workspace.counters[0] = args.workspace.counters[1] = 0;
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
