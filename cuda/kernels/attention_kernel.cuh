// The attention kernel: blocks take items until there are none, and run over each one's tiles, the
// next tile under way while one is computed. Few pairs are computed by all warps together, each
// with some of the keys and then some of the columns; many by a warp for each 16. Both do the same
// arithmetic in the same order, as weights pass through shared memory or registers as they are.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/kernels/attention_tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// The ranges of an item's pairs, and of a tree row the slots of its ancestors.
template <class Tiles>
__device__ __forceinline__ void open_item(const AttentionParams& params, BlockWork& work,
                                          const AttentionMemory<Tiles>& memory) {
  const Item& item = work.item;
  for (int i = threadIdx.x; i < Tiles::kPairs; i += kAttentionThreads) {
    // Beyond the last pair there is a copy of it, whose results are not written.
    const int pair = item.first_pair + min(i, item.num_pairs - 1);
    const int limit = row_limit(params, item.plan, pair / work.shape.group_size);
    memory.begins()[i] = row_begin(params, limit);
    memory.limits()[i] = limit;
  }
  if (item.by_row) {
    const int row = item.plan.first_row + item.first_pair / work.shape.group_size;
    const uint64_t* mask =
        params.batch.ancestor_mask + static_cast<int64_t>(row) * params.batch.mask_words;
    for (int word = threadIdx.x; word * 64 < item.plan.num_tree_slots; word += kAttentionThreads) {
      int depth = 0;
      for (int before = 0; before < word; ++before) depth += __popcll(mask[before]);
      const int num_bits = min(64, item.plan.num_tree_slots - word * 64);
      uint64_t bits = mask[word] & (~uint64_t{0} >> (64 - num_bits));
      for (; bits != 0; bits &= bits - 1) {
        memory.ancestors()[depth++] =
            static_cast<uint16_t>(word * 64 + __ffsll(static_cast<int64_t>(bits)) - 1);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  ItemRange range = {INT_MAX, 0, 0, INT_MAX};
  for (int i = threadIdx.x; i < Tiles::kPairs; i += kWarpSize) {
    range.begin = min(range.begin, memory.begins()[i]);
    range.limit = max(range.limit, memory.limits()[i]);
    range.common_begin = max(range.common_begin, memory.begins()[i]);
    range.common_limit = min(range.common_limit, memory.limits()[i]);
  }
#pragma unroll
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

template <class Tiles>
__device__ __forceinline__ void begin_query_copy(const AttentionParams& params,
                                                 const BlockWork& work,
                                                 const AttentionMemory<Tiles>& memory) {
  using T = typename Tiles::Element;
  constexpr int kRowChunks = Tiles::kPaddedDim / kChunk;
  const Item& item = work.item;
  const int group_size = work.shape.group_size, num_heads = work.shape.num_heads;
  const int head_dim = params.kv.head_dim;
  const T* q = static_cast<const T*>(params.q);
  for (int i = threadIdx.x; i < Tiles::kPairs * kRowChunks; i += kAttentionThreads) {
    const int index = i / kRowChunks, chunk = i % kRowChunks;
    const int pair = item.first_pair + min(index, item.num_pairs - 1);
    const int64_t row = item.plan.first_row + pair / group_size;
    const int head = item.kv_head * group_size + pair % group_size;
    const bool valid = index < item.num_pairs && chunk * kChunk < head_dim;
    ptx::copy_async_16(chunk_at(memory.query(), index, chunk, Tiles::kPaddedDim),
                       valid ? q + (row * num_heads + head) * head_dim + chunk * kChunk : q, valid);
  }
}

template <class Tiles, int kWarpColumns>
__device__ __forceinline__ void run_item(const AttendArgs& args, const BlockWork& work,
                                         const AttentionMemory<Tiles>& memory) {
  const AttentionParams& params = args.params;
  WarpTile<Tiles, kWarpColumns> warp;
  warp.begin_item();
  int tile = work.range.begin / kAttentionTile;
  const int limit = (work.range.limit + kAttentionTile - 1) / kAttentionTile;
  RowFinder finder;
  finder.look_up(params, work, memory.ancestors(), tile);
  finder.store(params, work, memory.rows(tile % 2));
  __syncthreads();
  begin_query_copy(params, work, memory);
  begin_copy(memory, params.kv, tile % 2);
  ptx::copy_async_commit();
  float scale = 0.0f;
  if constexpr (Tiles::kIsInt8) scale = load_scale(params.kv, memory.rows(tile % 2));
  finder.look_up(params, work, memory.ancestors(), tile + 1);

  for (int split = split_of(tile * kAttentionTile); tile < limit; ++tile) {
    const int stage = tile % 2;
    finder.store(params, work, memory.rows(stage ^ 1));
    if constexpr (Tiles::kIsInt8) memory.scales()[threadIdx.x] = scale;
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (tile + 1 < limit) {
      begin_copy(memory, params.kv, stage ^ 1);
      ptx::copy_async_commit();
      if constexpr (Tiles::kIsInt8) scale = load_scale(params.kv, memory.rows(stage ^ 1));
      finder.look_up(params, work, memory.ancestors(), tile + 2);
    }
    if constexpr (Tiles::kIsInt8) {
      unpack_tile(memory, stage);
      __syncthreads();
    }
    const int position = tile * kAttentionTile;
    if (split_of(position) != split) {
      warp.end_split(args.scale_log2);
      warp.begin_split();
      split = split_of(position);
    }
    warp.attend(memory, stage, position, work.range, args);
  }
  warp.end_split(args.scale_log2);
  warp.write(args, work.shape, work.item);
}

template <class Tiles>
__global__ void __launch_bounds__(kAttentionThreads, Tiles::kBlocksPerSm)
    attend_kernel(const AttendArgs args) {
  SPECDEC_SHARED_BYTES(shared);
  __shared__ BlockWork work;
  ptx::wait_for_previous();
  ptx::let_next_start();  // it waits for all of this, but is there when this is done
  const int num_requests = args.params.batch.num_requests;
  const AttentionMemory<Tiles> memory = {shared, num_requests};
  if (threadIdx.x < kWarpSize) {
    // Every layer plans the same again: one plan a pass would need the launches to know of passes.
    WorkShape shape = work_shape(args.params, Tiles::kPairs);
    plan_work(args, shape, memory.item_ends(), memory.slot_begins());
    if (threadIdx.x == 0) work.shape = shape;
  } else if (threadIdx.x == kWarpSize) {
    work.next = static_cast<int>(atomicAdd(args.workspace.counter, 1u));
  }
  __syncthreads();
  write_row_plans(args, work.shape, memory.slot_begins());
  const int num_items = num_requests > 0 ? memory.item_ends()[num_requests - 1] : 0;

  while (work.next < num_items) {
    int next = 0;  // wanted only when this one is done
    if (threadIdx.x == 0) {
      work.item =
          item_at(args.params, work.shape, memory.item_ends(), memory.slot_begins(), work.next);
      next = static_cast<int>(atomicAdd(args.workspace.counter, 1u));
    }
    __syncthreads();
    open_item(args.params, work, memory);
    __syncthreads();
    if (work.range.begin < work.range.limit) {
      const int num_pairs = work.item.num_pairs;
      if (num_pairs <= 16) {
        run_item<Tiles, kAttentionWarps>(args, work, memory);
      } else if (Tiles::kMostWarpRows == 2 || num_pairs <= 32) {
        run_item<Tiles, kAttentionWarps / 2>(args, work, memory);
      } else if constexpr (Tiles::kMostWarpRows == 4) {
        run_item<Tiles, 1>(args, work, memory);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) work.next = next;
    __syncthreads();
  }
}

// Joins the partial results of each row and head: a warp each. Zeros for rows of no request. A warp
// takes the splits in turn, which fixes the order of the sums; long contexts of few rows wait for
// that, as few warps have work.
template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads) join_kernel(const AttendArgs args) {
  constexpr int kValues = kDim / kWarpSize;  // of a lane, side by side
  constexpr int kAhead = 8;                  // slots read before they are needed
  constexpr int kVector = kValues < 4 ? 2 : 4;
  using Vector = std::conditional_t<kVector == 2, float2, float4>;
  ptx::wait_for_previous();
  ptx::let_next_start();
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.workspace.counter = 0;
  const AttentionParams& params = args.params;
  const int lane = threadIdx.x % kWarpSize;
  const int first_row = params.batch.cu_rows[0];  // not 0 where requests before these had a turn
  const int num_used = params.batch.cu_rows[params.batch.num_requests];
  const int num_warps = static_cast<int>(gridDim.x) * kAttentionWarps;
  const int num_pairs = params.batch.num_rows * params.num_heads;
  const int warp = blockIdx.x * kAttentionWarps + threadIdx.x / kWarpSize;
  for (int pair = first_row * params.num_heads + warp; pair < num_pairs; pair += num_warps) {
    const int row = pair / params.num_heads;
    float totals[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) totals[i] = 0.0f;
    float total_maximum = -INFINITY, total_sum = 0.0f;
    if (row < num_used) {
      const RowPlan plan = args.workspace.rows[row];
      if (plan.num_slots == 0) continue;
      const int64_t slot =
          plan.first_slot + static_cast<int64_t>(pair % params.num_heads) * plan.head_stride;
      for (int first = 0; first < plan.num_slots; first += kWarpSize) {
        const int count = min(kWarpSize, plan.num_slots - first);
        float2 part = make_float2(-INFINITY, 0.0f);
        if (lane < count) {
          part = *reinterpret_cast<const float2*>(args.workspace.sums + (slot + first + lane) * 2);
        }
        // The maximum after each slot, and what its join multiplies with.
        float maximum = fmaxf(total_maximum, part.x);
#pragma unroll
        for (int step = 1; step < kWarpSize; step *= 2) {
          const float below = __shfl_up_sync(kAllLanes, maximum, step);
          if (lane >= step) maximum = fmaxf(maximum, below);
        }
        float before = __shfl_up_sync(kAllLanes, maximum, 1);
        if (lane == 0) before = total_maximum;
        const float total_weight = decay(before, maximum, args.scale_log2);
        const float weight = decay(part.x, maximum, args.scale_log2);
        total_maximum = __shfl_sync(kAllLanes, maximum, kWarpSize - 1);
        const float* values = args.workspace.values + (slot + first) * kDim + lane * kValues;
        for (int begin = 0; begin < count; begin += kAhead) {
          float parts[kAhead][kValues];
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
#pragma unroll
            for (int i = 0; i < kValues; i += kVector) {
              Vector read = {};
              if (begin + j < count) {
                read = *reinterpret_cast<const Vector*>(values + (begin + j) * kDim + i);
              }
              memcpy(&parts[j][i], &read, sizeof(read));
            }
          }
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            const int source = min(begin + j, count - 1);
            const float a = __shfl_sync(kAllLanes, total_weight, source);
            const float b = __shfl_sync(kAllLanes, weight, source);
            const float sum = __shfl_sync(kAllLanes, part.y, source);
            if (begin + j >= count) continue;
            total_sum = join(total_sum, a, sum, b);
#pragma unroll
            for (int i = 0; i < kValues; ++i) totals[i] = join(totals[i], a, parts[j][i], b);
          }
        }
      }
    }
    const float inverse = inverse_of(total_sum);
    const int head_dim = params.kv.head_dim;
    T* out = static_cast<T*>(params.out) + static_cast<int64_t>(pair) * head_dim + lane * kValues;
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      if (lane * kValues + i >= head_dim) continue;
      *reinterpret_cast<uint32_t*>(out + i) =
          pack<T>(finished(totals[i], inverse), finished(totals[i + 1], inverse));
    }
  }
}

inline AttentionWorkspace share_workspace(const AttentionParams& params, int padded_dim) {
  constexpr size_t kCounterBytes = 256;
  const auto round_up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  char* base = static_cast<char*>(params.workspace);
  const size_t rows_bytes = round_up(params.batch.num_rows * sizeof(RowPlan));
  const size_t used = kCounterBytes + rows_bytes + 256;
  AttentionWorkspace workspace;
  workspace.counter = reinterpret_cast<uint32_t*>(base);
  workspace.rows = reinterpret_cast<RowPlan*>(base + kCounterBytes);
  const size_t slot_bytes = (padded_dim + 2) * sizeof(float);
  workspace.capacity = used < params.workspace_bytes
                           ? static_cast<int64_t>((params.workspace_bytes - used) / slot_bytes)
                           : 0;
  workspace.sums = reinterpret_cast<float*>(base + kCounterBytes + rows_bytes);
  workspace.values = reinterpret_cast<float*>(base + kCounterBytes + rows_bytes +
                                              round_up(workspace.capacity * 2 * sizeof(float)));
  return workspace;
}

// Of one launch, as a block has 8 bytes of shared memory for each; others are launched after them.
constexpr int kMostRequests = 1024;
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

template <class T, int kDim, bool kCodes>
void launch_requests(Stream& stream, const AttentionParams& params) {
  using Tiles = AttentionTiles<T, kDim, kCodes>;
  constexpr float kLog2E = 1.44269504088896340736f;
  const AttendArgs args = {.params = params,
                           .workspace = share_workspace(params, kDim),
                           .scale_log2 = params.scale * kLog2E,
                           .score_limit = params.soft_cap / params.scale};
  const auto num_blocks = static_cast<unsigned>(params.num_multiprocessors * Tiles::kBlocksPerSm);
  static_assert(Tiles::shared_bytes(kMostRequests, kMostMaskWords) <= attention_shared_bytes(kDim));
  const int shared_bytes =
      Tiles::shared_bytes(params.batch.num_requests,
                          params.batch.ancestor_mask != nullptr ? params.batch.mask_words : 0);
  launch("attention", stream, attend_kernel<Tiles>,
         {.grid = {num_blocks},
          .block = {kAttentionThreads},
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .overlaps_previous = true},
         args);
  const int num_pairs = params.batch.num_rows * params.num_heads;
  const int most_blocks = params.num_multiprocessors * 8;
  const int blocks = (num_pairs + kAttentionWarps - 1) / kAttentionWarps;
  launch("attention_join", stream, join_kernel<T, kDim>,
         {.grid = {static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks)},
          .block = {kAttentionThreads},
          .overlaps_previous = true},
         args);
}

template <class T, int kDim, bool kCodes>
void launch_attention(Stream& stream, const AttentionParams& params) {
  AttentionParams turn = params;
  int begin = 0;
  do {  // without requests, too: all rows become zeros
    const int left = params.batch.num_requests - begin;
    turn.batch = requests_from(params.batch, begin, left < kMostRequests ? left : kMostRequests);
    launch_requests<T, kDim, kCodes>(stream, turn);
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
