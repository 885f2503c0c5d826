// How threads share the attention of a batch. A unit is some query rows and one KV head over chunks
// of positions. Threads take slices of about equal cost, each holding parts of units. When a slice
// ends within a unit, the thread that completes the unit merges its chunks. No result depends on
// the tiling.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/op_args.h"

namespace specdec::cpu {

// Query rows [first_row, first_row + num_rows) of a request and one KV head.
struct AttentionUnit {
  int request = 0;
  int kv_head = 0;
  int first_row = 0;
  int num_rows = 0;
  int first_position = 0;  // the first that any row sees
  int position_limit = 0;
  int num_portions = 0;
  int64_t partials =
      -1;  // where its chunks' results begin; -1: one portion computes the whole unit

  int first_chunk() const;
  int chunk_limit() const;
};

struct AttentionPortion {
  int unit = 0;
  int chunk_begin = 0;
  int chunk_end = 0;
};

struct AttentionWork {
  std::vector<AttentionUnit> units;
  std::vector<AttentionPortion> portions;
  std::vector<int> slices;   // [num_slices + 1] first portion of each slice
  int64_t num_partials = 0;  // results of a (row, head) pair and a chunk, over all split units

  int num_slices() const { return static_cast<int>(slices.size()) - 1; }
};

bool is_tree(const BatchView& batch, int request);
// Slots past base_len that the request's rows may see.
int num_tail_slots(const BatchView& batch, int request);

AttentionWork divide_attention(const TreeAttentionArgs& args, int num_threads);

}  // namespace specdec::cpu
