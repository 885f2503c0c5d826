// The rows of an attention task: the slots that each of them sees, and the tiles of (row, head)
// pairs that are computed together. Only for files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/integers.h"
#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

// Register tiles: kTilePairs (row, head) pairs by kTileVectors vectors of positions or of values.
#if defined(__AVX512F__)
inline constexpr int kTilePairs = 6;
inline constexpr int kTileVectors = 4;
#elif defined(__AVX2__) || defined(SPECDEC_NEON)
inline constexpr int kTilePairs = 4;
inline constexpr int kTileVectors = 1;
#else
inline constexpr int kTilePairs = 2;
inline constexpr int kTileVectors = 1;
#endif
inline constexpr int kMaxTiles = (kMaxAttentionPairs + kTilePairs - 1) / kTilePairs;

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

struct TaskRows {
  explicit TaskRows(const AttentionTask& t) : task(t) {}

  const AttentionTask& task;
  const int num_pairs = task.num_rows * task.group_size;
  RowSpan rows[kMaxAttentionRows];
  Tile tiles[kMaxTiles];
  int num_tiles = 0;
  // Whether every row sees its request's slots in order and without a gap, so that slots are
  // positions.
  bool in_order = true;
  int shared_begin = 0, shared_end = 0;  // slots that equal their position for all rows
  int tail_end = 0;                      // end of the slots that any row sees

  int32_t* tail_slots(int row) const {
    return task.tail_slots + int64_t{row} * task.num_tree_slots;
  }

  void arrange() {
    find_rows();
    cut_tiles();
  }

  void find_rows() {
    int end = 0;
    for (int r = 0; r < task.num_rows; ++r) {
      rows[r].end = task.base_len + (task.mask == nullptr ? task.first_row + r + 1 : list_slots(r));
      const int window_begin = task.sliding_window > 0 ? rows[r].end - task.sliding_window : 0;
      rows[r].begin = max_of(task.first_position, window_begin);
      end = max_of(end, rows[r].end);
    }
    shared_begin = task.first_position;
    shared_end = in_order ? end : task.base_len;
  }

  // Writes the slots of a tree row's ancestors (itself last) and returns how many there are.
  int list_slots(int r) {
    const uint64_t* mask = task.mask + int64_t{r} * task.mask_words;
    int32_t* slots = tail_slots(r);
    int count = 0;
    for (int first = 0; first < task.num_tree_slots; first += 64) {
      const int num_bits = min_of(64, task.num_tree_slots - first);
      for (uint64_t bits = mask[first / 64] & (~uint64_t{0} >> (64 - num_bits)); bits != 0;
           bits &= bits - 1) {
        slots[count++] = task.base_len + first + __builtin_ctzll(bits);
      }
    }
    if (count > 0) {
      in_order = in_order && slots[count - 1] == task.base_len + count - 1;
      tail_end = max_of(tail_end, slots[count - 1] + 1);
    }
    return count;
  }

  void cut_tiles() {
    num_tiles = (num_pairs + kTilePairs - 1) / kTilePairs;
    int pair = 0;
    for (int t = 0; t < num_tiles; ++t) {
      Tile& tile = tiles[t];
      tile.first_pair = pair;
      tile.num_pairs = (num_pairs - pair + num_tiles - t - 1) / (num_tiles - t);
      tile.begin = shared_end;
      tile.end = 0;
      for (int r = pair / task.group_size; r <= (pair + tile.num_pairs - 1) / task.group_size;
           ++r) {
        tile.begin = min_of(tile.begin, rows[r].begin);
        tile.end = max_of(tile.end, min_of(rows[r].end, shared_end));
      }
      pair += tile.num_pairs;
    }
  }
};

}  // namespace specdec::cpu::SPECDEC_ISA
