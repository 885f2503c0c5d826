// The work list of attention: which block computes which (row, head, split). Lengths are in device
// memory, so the blocks of a pass's first layer work the list out themselves, while the kernel
// before still runs. An item is a few (row, head) pairs of a request that share a KV head, and a
// range of splits. A block's first item is the one with its own index; further items come from a
// shared counter. What a block works out about an item it also stores for later layers
// (StoredItem).
//
// Rows of a tree have their ancestors at scattered slots. Splits wholly below base_len are computed
// for many rows together, as all splits of a chain are; the others for each tree row by itself.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/common/target.cuh"
#include "cuda/kernels/attention.h"

namespace specdec::cuda::SPECDEC_TARGET {

constexpr int kWarpSize = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// Splits are short at first, so that a short context can be shared among blocks, and longer beyond,
// so that a long one has few partial results to join. Results depend on these numbers. A request
// with 8 KV heads and 1,000 positions has 64 items of 128 positions. On an H200 its attention takes
// 2.5 us less than with 32 items of 256.
constexpr int kShortSplit = 128;  // positions
constexpr int kShortEnd = 2048;
constexpr int kMiddleSplit = 256;
constexpr int kMiddleEnd = 16384;
constexpr int kLongSplit = 1024;
constexpr int kNumShortSplits = kShortEnd / kShortSplit;
constexpr int kNumMiddleSplits = (kMiddleEnd - kShortEnd) / kMiddleSplit;

__device__ __forceinline__ int split_of(int position) {
  if (position < kShortEnd) return position / kShortSplit;
  if (position < kMiddleEnd) return kNumShortSplits + (position - kShortEnd) / kMiddleSplit;
  return kNumShortSplits + kNumMiddleSplits + (position - kMiddleEnd) / kLongSplit;
}
__device__ __forceinline__ int split_begin(int split) {
  if (split < kNumShortSplits) return split * kShortSplit;
  split -= kNumShortSplits;
  if (split < kNumMiddleSplits) return kShortEnd + split * kMiddleSplit;
  return kMiddleEnd + (split - kNumMiddleSplits) * kLongSplit;
}

// The first split that begins at or after a position.
__device__ __forceinline__ int split_from(int position) {
  const int split = split_of(position);
  return split_begin(split) < position ? split + 1 : split;
}

// A launch's share of the workspace.
struct AttentionWorkspace {
  // If there are more items than blocks: items taken from the counter, and blocks that found none
  // left. 0 between launches.
  uint32_t* counters;
  // [capacity] Per row and head, at the index of its first partial result: how many of its partial
  // results are written. 0 between launches.
  uint32_t* arrivals;
  float* sums;       // [capacity, 2] maximum, sum of weights
  float* values;     // [capacity, padded head_dim] weighted values
  int64_t capacity;  // partial results
};

struct AttendArgs {
  AttentionParams params;
  AttentionWorkspace workspace;
  float scale_log2;   // score * scale_log2 is an exponent of 2
  float score_limit;  // soft cap of scores before they are scaled; 0: none
  // The pass's work list, or null. The kernel that works it out writes it; the other kernel reads
  // it.
  int* num_stored;     // items
  void* stored_items;  // [*num_stored] StoredItem
};

// How a request's splits are divided among items.
enum class Sharing : int {
  kSplits,  // an item has a few splits and a partial result for each
  kPairs,   // an item has all shared splits; a tree's tails are items of their own
  kAlone,   // an item is one row, from its first position to its last
};

struct RequestExtent {
  int first_row;
  int num_rows;
  int base_len;
  int num_tree_slots;
  bool is_tree;
  int first_split;  // the first split that any row sees
  int shared_end;   // splits before it are computed for many rows together
  int split_end;

  __device__ int num_shared() const { return shared_end - first_split; }
  __device__ int num_tail() const { return split_end - shared_end; }
};

// The first position that a row sees; `limit` is one past the last.
__device__ __forceinline__ int row_begin(const AttentionParams& params, int limit) {
  const int window_begin = params.sliding_window > 0 ? limit - params.sliding_window : 0;
  return max(params.first_position, window_begin);
}

__device__ __forceinline__ RequestExtent extent_of(const AttentionParams& params, int request) {
  const BatchView& batch = params.batch;
  RequestExtent extent;
  extent.first_row = __ldcg(batch.cu_rows + request);
  extent.num_rows = __ldcg(batch.cu_rows + request + 1) - extent.first_row;
  extent.base_len = __ldcg(batch.base_lens + request);
  extent.is_tree = batch.is_tree != nullptr && __ldcg(batch.is_tree + request) != 0;
  extent.num_tree_slots =
      batch.num_tree_slots != nullptr ? __ldcg(batch.num_tree_slots + request) : extent.num_rows;
  extent.first_split = extent.shared_end = extent.split_end = 0;
  if (extent.num_rows <= 0) {
    extent.num_rows = 0;
    return extent;
  }
  extent.first_split = split_of(row_begin(params, extent.base_len + 1));
  const int num_slots = extent.is_tree ? max(1, extent.num_tree_slots) : extent.num_rows;
  extent.split_end = split_of(extent.base_len + num_slots - 1) + 1;
  extent.shared_end = extent.is_tree ? split_of(extent.base_len) : extent.split_end;
  return extent;
}

// Loads from L2, for reads before wait_for_previous(): L1 may hold older contents.
__device__ __forceinline__ uint64_t load_mask(const uint64_t* mask) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(mask));
}

// One past the last position a row sees.
__device__ __forceinline__ int row_limit(const AttentionParams& params, const RequestExtent& extent,
                                         int row) {
  if (!extent.is_tree) return extent.base_len + row + 1;
  const int words = params.batch.mask_words;
  const uint64_t* mask =
      params.batch.ancestor_mask + static_cast<int64_t>(extent.first_row + row) * words;
  int count = 0;
#pragma unroll 1
  for (int first = 0; first < extent.num_tree_slots; first += 64) {
    const int num_bits = min(64, extent.num_tree_slots - first);
    count += __popcll(load_mask(mask + first / 64) & (~uint64_t{0} >> (64 - num_bits)));
  }
  return extent.base_len + count;
}
// The quantities that define all items; the same in every block.
struct WorkShape {
  int num_kv_heads;
  int num_heads;
  int group_size;
  int pair_bits;      // an item may have 2^pair_bits pairs
  int num_blocks;     // of the grid
  int64_t num_tiles;  // of positions, over all items
  int item_tiles;     // of shared splits per item, about a block's share
  int level;          // 0: as wide as is useful; 1: few partial results; 2: none

  __device__ int pair_tiles(int num_pairs) const {
    return (num_pairs + (1 << pair_bits) - 1) >> pair_bits;
  }
  __device__ int shared_tiles(const RequestExtent& extent) const {
    return (split_begin(extent.shared_end) - split_begin(extent.first_split)) / kAttentionTile;
  }
  __device__ int64_t cost(const RequestExtent& extent) const {
    const int tail_tiles =
        (split_begin(extent.split_end) - split_begin(extent.shared_end)) / kAttentionTile;
    const int64_t shared =
        static_cast<int64_t>(pair_tiles(extent.num_rows * group_size)) * shared_tiles(extent);
    const int64_t tails =
        static_cast<int64_t>(extent.num_rows) * pair_tiles(group_size) * tail_tiles;
    return num_kv_heads * (shared + tails);
  }
  // Shared splits are joined through memory: worth it where one block alone would do more than
  // twice its share of the work.
  __device__ Sharing sharing(const RequestExtent& extent, int at_level) const {
    if (at_level == 2) return extent.is_tree ? Sharing::kAlone : Sharing::kPairs;
    if (at_level == 1 || extent.num_shared() <= 1) return Sharing::kPairs;
    const int64_t alone = static_cast<int64_t>(shared_tiles(extent)) * num_blocks;
    return alone > 2 * num_tiles ? Sharing::kSplits : Sharing::kPairs;
  }
  // Partial results per pair: columns of a table of them.
  __device__ int num_columns(const RequestExtent& extent, Sharing sharing) const {
    if (sharing == Sharing::kSplits) return extent.split_end - extent.first_split;
    if (sharing == Sharing::kAlone || !extent.is_tree) return 0;
    return min(1, extent.num_shared()) + extent.num_tail();
  }
  __device__ int column_of(const RequestExtent& extent, Sharing sharing, int split) const {
    if (sharing == Sharing::kSplits) return split - extent.first_split;
    return split < extent.shared_end ? 0 : min(1, extent.num_shared()) + split - extent.shared_end;
  }
  __device__ int64_t num_partials(const RequestExtent& extent, Sharing sharing) const {
    return static_cast<int64_t>(extent.num_rows) * num_heads * num_columns(extent, sharing);
  }
  __device__ int num_shared_items(const RequestExtent& extent, Sharing sharing) const {
    if (sharing == Sharing::kAlone) return 0;
    const int ranges = sharing == Sharing::kSplits
                           ? (shared_tiles(extent) + item_tiles - 1) / item_tiles
                           : min(1, extent.num_shared());
    return num_kv_heads * pair_tiles(extent.num_rows * group_size) * ranges;
  }
  __device__ int num_items(const RequestExtent& extent, Sharing sharing) const {
    const int ranges = sharing == Sharing::kAlone ? 1 : extent.num_tail();
    const int tails = num_kv_heads * extent.num_rows * pair_tiles(group_size) * ranges;
    return num_shared_items(extent, sharing) + tails;
  }
};

__device__ __forceinline__ WorkShape work_shape(const AttentionParams& params, int pair_bits) {
  return {.num_kv_heads = params.kv.num_kv_heads,
          .num_heads = params.num_heads,
          .group_size = params.num_heads / params.kv.num_kv_heads,
          .pair_bits = pair_bits,
          .num_blocks = static_cast<int>(gridDim.x),
          .num_tiles = 0,
          .item_tiles = 0,
          .level = 0};
}

// A rolled loop: the compiler adds 100 bytes of code to every shuffle, for warps whose lanes have
// diverged.
__device__ __forceinline__ int64_t warp_total(int64_t value) {
#pragma unroll 1
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// One warp completes the shape, and writes for every request where its items end and its partial
// results begin. It goes through the requests four times: for the tiles, for the partial results at
// levels 0 and 1, and for the prefix sums. In one loop, because code that runs once per layer
// should be short.
__device__ __forceinline__ void list_work(const AttendArgs& args, WorkShape& shape, int* item_ends,
                                          int* partial_begins) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_requests = args.params.batch.num_requests;
  int64_t tiles = 0;
  shape.level = 2;
  int items_before = 0, partials_before = 0;
  RequestExtent extent = {};
#pragma unroll 1
  for (int look = 0; look < 4; ++look) {
    const int level = look == 3 ? shape.level : look - 1;
    int64_t partials = 0;
#pragma unroll 1
    for (int first = 0; first < num_requests; first += kWarpSize) {
      const int r = first + lane;
      if (look == 0 || num_requests > kWarpSize) {
        if (r < num_requests) extent = extent_of(args.params, r);
      }
      if (look == 0) {
        if (r < num_requests) tiles += shape.cost(extent);
        continue;
      }
      const Sharing sharing = shape.sharing(extent, level);
      const int64_t own_partials = r < num_requests ? shape.num_partials(extent, sharing) : 0;
      if (look < 3) {
        partials += own_partials;
        continue;
      }
      const int num_partials = static_cast<int>(own_partials);
      int item_end = r < num_requests ? shape.num_items(extent, sharing) : 0;
      int partial_end = num_partials;
#pragma unroll 1
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int items = __shfl_up_sync(kAllLanes, item_end, distance);
        const int below = __shfl_up_sync(kAllLanes, partial_end, distance);
        if (lane >= distance) {
          item_end += items;
          partial_end += below;
        }
      }
      if (r < num_requests) {
        item_ends[r] = items_before + item_end;
        partial_begins[r] = partials_before + partial_end - num_partials;
      }
      items_before += __shfl_sync(kAllLanes, item_end, kWarpSize - 1);
      partials_before += __shfl_sync(kAllLanes, partial_end, kWarpSize - 1);
    }
    if (look == 0) {
      constexpr int kLeast = kShortSplit / kAttentionTile;
      shape.num_tiles = warp_total(tiles);
      const int all = static_cast<int>(min(shape.num_tiles, int64_t{1} << 30));
      const int share = (all + shape.num_blocks - 1) / shape.num_blocks;
      shape.item_tiles = (max(share, 1) + kLeast - 1) / kLeast * kLeast;
    } else if (look < 3 && warp_total(partials) <= args.workspace.capacity) {
      shape.level = min(shape.level, level);
    }
  }
}

// Some pairs of a request that share a KV head, over some splits. Pair p of a request is its row
// p / group_size and query head kv_head * group_size + p % group_size.
struct Item {
  int request;
  RequestExtent extent;
  int kv_head;
  int first_pair;
  int num_pairs;
  bool by_row;  // one tree row, whose slots past base_len are its ancestors'
  int split_first;
  int split_limit;
  int partial;  // partial result of the request's row 0, head 0; -1: results go to out
  int num_columns;
  int column;  // of split_first
  Sharing sharing;

  // Partial results that it writes per pair.
  __device__ int num_filled() const {
    return sharing == Sharing::kSplits ? split_limit - split_first : 1;
  }
};

__device__ __forceinline__ Item item_at(const AttentionParams& params, const WorkShape& shape,
                                        const int* item_ends, const int* partial_begins,
                                        int index) {
  int low = 0, high = params.batch.num_requests - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (item_ends[middle] > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  Item item;
  item.request = low;
  item.extent = extent_of(params, low);
  const RequestExtent& extent = item.extent;
  const Sharing sharing = shape.sharing(extent, shape.level);
  int local = index - (low > 0 ? item_ends[low - 1] : 0);
  const int num_shared_items = shape.num_shared_items(extent, sharing);
  item.by_row = local >= num_shared_items;
  if (!item.by_row) {
    // Last pairs first: in a prompt they see the most positions.
    const int num_pairs = extent.num_rows * shape.group_size;
    const int num_tiles = shape.pair_tiles(num_pairs);
    item.first_pair = (num_tiles - 1 - local % num_tiles) << shape.pair_bits;
    item.num_pairs = min(1 << shape.pair_bits, num_pairs - item.first_pair);
    local /= num_tiles;
    item.kv_head = local % shape.num_kv_heads;
    const int range = local / shape.num_kv_heads;
    item.split_first = extent.first_split;
    item.split_limit = extent.shared_end;
    if (sharing == Sharing::kSplits) {
      const int positions = shape.item_tiles * kAttentionTile;
      const int begin = split_begin(extent.first_split) + range * positions;
      item.split_first = split_from(begin);
      item.split_limit = min(split_from(begin + positions), extent.shared_end);
    }
  } else {
    local -= num_shared_items;
    const int num_tiles = shape.pair_tiles(shape.group_size);
    const int row = local % extent.num_rows;
    local /= extent.num_rows;
    const int first = local % num_tiles << shape.pair_bits;
    local /= num_tiles;
    item.first_pair = row * shape.group_size + first;
    item.num_pairs = min(1 << shape.pair_bits, shape.group_size - first);
    item.kv_head = local % shape.num_kv_heads;
    const int range = local / shape.num_kv_heads;
    const bool alone = sharing == Sharing::kAlone;
    item.split_first = alone ? extent.first_split : extent.shared_end + range;
    item.split_limit = alone ? extent.split_end : item.split_first + 1;
  }
  item.sharing = sharing;
  item.num_columns = shape.num_columns(extent, sharing);
  item.column = shape.column_of(extent, sharing, item.split_first);
  item.partial = item.num_columns > 0 ? partial_begins[low] + item.column : -1;
  return item;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
