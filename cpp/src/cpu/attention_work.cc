#include "cpu/attention_work.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "core/check.h"
#include "cpu/kernels/attention.h"

namespace specdec::cpu {
namespace {

// Target number of (row, head) pairs per unit. With this many pairs, keys and values are reused
// often while they are in the cache, and the unit's scores still fit beside them.
constexpr int kTargetPairs = 128;
// A position's keys and values take as long to read as this many pairs take to compute.
constexpr int64_t kReadCost = 16;
// Least cost of a slice that is worth giving to a thread, about 10 microseconds.
constexpr int64_t kSliceCost = 16 * 1024;
constexpr int kSlicesPerThread = 4;
// A unit whose cost is more than this share of a slice is split.
constexpr int64_t kSplitShare = 8;

int row_end(const BatchView& batch, int request, int row) {
  const int base_len = batch.base_lens[request];
  if (!is_tree(batch, request)) return base_len + row + 1;
  const uint64_t* mask =
      batch.ancestor_mask + int64_t{batch.cu_rows[request] + row} * batch.mask_words;
  const int num_slots = num_tail_slots(batch, request);
  int count = 0;
  for (int first = 0; first < num_slots; first += 64) {
    const int num_bits = std::min(64, num_slots - first);
    count += std::popcount(mask[first / 64] & (~uint64_t{0} >> (64 - num_bits)));
  }
  return base_len + count;
}

void add_units(const TreeAttentionArgs& args, int request, std::vector<AttentionUnit>& units) {
  const BatchView& batch = *args.batch;
  const int num_rows = batch.cu_rows[request + 1] - batch.cu_rows[request];
  if (is_tree(batch, request)) {
    SPECDEC_CHECK_LE(num_rows, num_tail_slots(batch, request));
    SPECDEC_CHECK_LE(num_tail_slots(batch, request), 64 * batch.mask_words);
  }
  const int group_size = args.num_heads / args.kv.num_kv_heads;
  const int most_rows =
      std::clamp(kTargetPairs / group_size, 1, static_cast<int>(kMaxAttentionRows));
  const int num_tiles = (num_rows + most_rows - 1) / most_rows;
  const size_t first_unit = units.size();
  for (int tile = 0; tile < num_tiles; ++tile) {
    AttentionUnit unit = {.request = request, .first_position = INT_MAX};
    unit.first_row = num_rows * tile / num_tiles;
    unit.num_rows = num_rows * (tile + 1) / num_tiles - unit.first_row;
    for (int row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
      const int end = row_end(batch, request, row);
      const int window_begin = args.sliding_window > 0 ? end - args.sliding_window : 0;
      const int begin = std::max(args.first_position, window_begin);
      unit.first_position = std::min(unit.first_position, begin);
      unit.position_limit = std::max(unit.position_limit, end);
    }
    units.push_back(unit);
  }
  // Heads are the outer loop: the next rows find this head's keys and values in the cache.
  for (int head = 1; head < args.kv.num_kv_heads; ++head) {
    for (int tile = 0; tile < num_tiles; ++tile) {
      AttentionUnit unit = units[first_unit + tile];
      unit.kv_head = head;
      units.push_back(unit);
    }
  }
}

// Cuts the units' chunks, one after another, into slices.
class Slicer {
 public:
  Slicer(AttentionWork& work, int group_size, int num_threads)
      : work_(work), group_size_(group_size) {
    for (const AttentionUnit& unit : work.units) {
      total_ += cost(unit, unit.first_position, unit.position_limit);
    }
    const int64_t per_thread =
        std::clamp<int64_t>(total_ / (num_threads * kSliceCost), 1, kSlicesPerThread);
    num_slices_ = per_thread * num_threads;
    work_.slices.push_back(0);
  }

  void add(int index) {
    const AttentionUnit& unit = work_.units[index];
    const int64_t whole = cost(unit, unit.first_position, unit.position_limit);
    const bool splits = whole * kSplitShare * num_slices_ > total_;
    int begin = unit.first_chunk();
    for (int chunk = begin; chunk < unit.chunk_limit(); ++chunk) {
      const int64_t here = cost(unit, std::max(unit.first_position, chunk * kAttentionChunk),
                                std::min(unit.position_limit, (chunk + 1) * kAttentionChunk));
      if (splits || chunk == begin) {
        while (is_past_slice(splits ? here : whole)) {
          if (chunk > begin) push(index, begin, chunk);
          begin = chunk;
          work_.slices.push_back(static_cast<int>(work_.portions.size()));
        }
      }
      done_ += here;
    }
    push(index, begin, unit.chunk_limit());
  }

  void finish() {
    work_.slices.push_back(static_cast<int>(work_.portions.size()));
    for (AttentionUnit& unit : work_.units) {
      if (unit.num_portions < 2) continue;
      unit.partials = work_.num_partials;
      work_.num_partials +=
          int64_t{unit.chunk_limit() - unit.first_chunk()} * unit.num_rows * group_size_;
    }
  }

 private:
  int64_t cost(const AttentionUnit& unit, int begin, int end) const {
    return (end - begin) * std::max<int64_t>(kReadCost, unit.num_rows * group_size_);
  }
  // Whether work of cost `next` belongs to the next slice because most of it lies past this one's
  // end.
  bool is_past_slice(int64_t next) const {
    const int64_t num_ended = static_cast<int64_t>(work_.slices.size());
    return num_ended < num_slices_ && (done_ + next / 2) * num_slices_ > total_ * num_ended;
  }
  void push(int unit, int begin, int end) {
    work_.portions.push_back({unit, begin, end});
    ++work_.units[unit].num_portions;
  }

  AttentionWork& work_;
  int group_size_;
  int64_t num_slices_ = 0;
  int64_t total_ = 0;
  int64_t done_ = 0;
};

}  // namespace

int AttentionUnit::first_chunk() const { return first_position / kAttentionChunk; }
int AttentionUnit::chunk_limit() const {
  return (position_limit + kAttentionChunk - 1) / kAttentionChunk;
}

bool is_tree(const BatchView& batch, int request) {
  return batch.is_tree != nullptr && batch.is_tree[request] != 0;
}

int num_tail_slots(const BatchView& batch, int request) {
  if (is_tree(batch, request) && batch.num_tree_slots != nullptr) {
    return batch.num_tree_slots[request];
  }
  return batch.cu_rows[request + 1] - batch.cu_rows[request];
}

AttentionWork divide_attention(const TreeAttentionArgs& args, int num_threads) {
  AttentionWork work;
  for (int request = 0; request < args.batch->num_requests; ++request) {
    add_units(args, request, work.units);
  }
  Slicer slicer(work, args.num_heads / args.kv.num_kv_heads, num_threads);
  for (size_t i = 0; i < work.units.size(); ++i) slicer.add(static_cast<int>(i));
  slicer.finish();
  return work;
}

}  // namespace specdec::cpu
