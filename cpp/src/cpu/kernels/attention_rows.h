// What the rows of an attention task see, and how (row, head) pairs are grouped into register
// tiles. Only for files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/attention_tiles.h"
#include "cpu/kernels/kv_layout.h"

namespace specdec::cpu::SPECDEC_ISA {

inline int min_of(int a, int b) { return a < b ? a : b; }
inline int max_of(int a, int b) { return a > b ? a : b; }
inline int clamp(int x, int low, int high) { return max_of(low, min_of(x, high)); }
inline int round_down(int x, int unit) { return x / unit * unit; }
inline int round_up(int x, int unit) { return (x + unit - 1) / unit * unit; }
inline int groups_below(int position) { return (position + kGroupTokens - 1) / kGroupTokens; }

// Positions [begin, end) that a row sees.
struct RowSpan {
  int begin;
  int end;
};

// Consecutive pairs computed in registers together, and the shared slots that any of them sees.
struct Tile {
  int first_pair;
  int num_pairs;
  int begin;
  int end;
};

class AttentionRows {
 public:
  explicit AttentionRows(const AttentionTask& task)
      : task_(task), num_pairs_(task.num_rows * task.group_size) {
    plan_rows();
    plan_tiles();
  }

  int num_pairs() const { return num_pairs_; }
  const RowSpan& span(int row) const { return spans_[row]; }
  int num_tiles() const { return num_tiles_; }
  const Tile& tile(int index) const { return tiles_[index]; }

  // Whether every row sees its request's slots in order, without a gap: slots are positions then.
  bool in_order() const { return in_order_; }
  // Slots that are their own positions for all rows.
  int shared_begin() const { return task_.first_position; }
  int shared_end() const { return shared_end_; }
  // The slots past base_len that row `row` of a tree sees, in order of position.
  const int32_t* tail_slots(int row) const { return slots_of(row); }
  int tail_end() const { return tail_end_; }  // of slots that any row sees

 private:
  static constexpr int kMaxTiles = (kMaxAttentionPairs + kTilePairs - 1) / kTilePairs;

  int32_t* slots_of(int row) const {
    return task_.tail_slots + int64_t{row} * task_.num_tree_slots;
  }

  void plan_rows() {
    int end = 0;
    for (int r = 0; r < task_.num_rows; ++r) {
      RowSpan& span = spans_[r];
      span.end = task_.base_len + (task_.mask == nullptr ? task_.first_row + r + 1 : list_slots(r));
      span.begin = task_.sliding_window > 0 ? max_of(0, span.end - task_.sliding_window) : 0;
      end = max_of(end, span.end);
    }
    shared_end_ = in_order_ ? end : task_.base_len;
  }

  // Writes the slots of a tree row's ancestors (itself last) and returns how many there are.
  int list_slots(int r) {
    const uint64_t* mask = task_.mask + int64_t{r} * task_.mask_words;
    int32_t* slots = slots_of(r);
    int count = 0;
    for (int first = 0; first < task_.num_tree_slots; first += 64) {
      const int num_bits = min_of(64, task_.num_tree_slots - first);
      for (uint64_t bits = mask[first / 64] & (~uint64_t{0} >> (64 - num_bits)); bits != 0;
           bits &= bits - 1) {
        slots[count++] = task_.base_len + first + __builtin_ctzll(bits);
      }
    }
    if (count > 0) {
      in_order_ = in_order_ && slots[count - 1] == task_.base_len + count - 1;
      tail_end_ = max_of(tail_end_, slots[count - 1] + 1);
    }
    return count;
  }

  // Tiles of about equal size, with what their rows see.
  void plan_tiles() {
    num_tiles_ = (num_pairs_ + kTilePairs - 1) / kTilePairs;
    int pair = 0;
    for (int t = 0; t < num_tiles_; ++t) {
      Tile& tile = tiles_[t];
      tile.first_pair = pair;
      tile.num_pairs = (num_pairs_ - pair + num_tiles_ - t - 1) / (num_tiles_ - t);
      tile.begin = shared_end_;
      tile.end = 0;
      const int last_row = (pair + tile.num_pairs - 1) / task_.group_size;
      for (int r = pair / task_.group_size; r <= last_row; ++r) {
        tile.begin = min_of(tile.begin, spans_[r].begin);
        tile.end = max_of(tile.end, min_of(spans_[r].end, shared_end_));
      }
      pair += tile.num_pairs;
    }
  }

  const AttentionTask& task_;
  const int num_pairs_;
  RowSpan spans_[kMaxAttentionRows];
  Tile tiles_[kMaxTiles];
  int num_tiles_ = 0;
  bool in_order_ = true;
  int shared_end_ = 0;
  int tail_end_ = 0;
};

}  // namespace specdec::cpu::SPECDEC_ISA
