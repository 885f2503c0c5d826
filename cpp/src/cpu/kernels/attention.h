// Paged attention of one group of query rows that share a KV head. Plain aggregates only: see
// kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

// Keys of a block lie transposed, so that 16 positions are one vector:
//   float32   [num_blocks, num_kv_heads, head_dim, block_size]
//   bfloat16  [num_blocks, num_kv_heads, head_dim / 2, block_size, 2]
// values in both: [num_blocks, num_kv_heads, block_size, head_dim].
// Values may be read up to 15 elements past the last one.
struct AttentionTask {
  const void* q;  // first row, first head of the group; rows are row_stride elements apart
  void* out;      // likewise
  int64_t row_stride;
  int num_rows;
  int group_size;  // query heads that share the KV head
  int head_dim;
  float scale;

  const void* keys;
  const void* values;
  const int32_t* block_table;  // of the request
  int block_size;              // a multiple of 16
  int num_kv_heads;
  int kv_head;

  int base_len;        // committed tokens
  int first_row;       // index of row 0 among the request's rows
  int sliding_window;  // 0: none
  // [num_rows, mask_words] slots from base_len on that the rows see, their own among them; null for
  // a chain.
  const uint64_t* mask;
  int mask_words;
  int num_tree_slots;  // bits of a mask

  // Scratch of the calling thread, contents of no meaning before or after.
  float* scores;         // [num_rows * group_size, score_stride], 64-byte aligned
  int64_t score_stride;  // a multiple of 16, at least visible slots of all rows + 32
  float* accumulators;   // [num_rows * group_size, head_dim rounded up to 16]
  int32_t* tail_slots;   // [num_rows, num_tree_slots]; only used with a mask
};

// Limits of one task: rows, and rows times group_size.
enum : int { kMaxAttentionRows = 64, kMaxAttentionPairs = 256 };

struct AttentionKernels {
  void (*bf16)(const AttentionTask& task);
  void (*f32)(const AttentionTask& task);
};

}  // namespace specdec::cpu
