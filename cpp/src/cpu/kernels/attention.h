// Paged attention of one group of query rows that share a KV head. Plain aggregates only: see
// kernel_table.h.
//
// A row's result is defined by chunks of kAttentionChunk positions. Each chunk has its own scores,
// maximum, weights and weighted values, and chunks are merged in order, so different threads may
// compute the chunks of one row. The result depends on neither the other rows of a task nor how
// tasks were cut. The layout of the cache is in kv_layout.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

enum : int {
  kAttentionChunk = 256,
  // Limits of one task: rows, and rows times group_size.
  kMaxAttentionRows = 128,
  kMaxAttentionPairs = 256,
  // Floats between the scores of two (row, head) pairs: a chunk and a vector, so that pairs do not
  // fall into the same cache sets.
  kScoreStride = kAttentionChunk + 16,
  // Floats of a partial result after its weighted values: 16 sums, and the maximum 16 times.
  kPartialExtra = 32,
  // Bytes of keys (or values), as activations, that one block holds.
  kAttentionBlockBytes = 16 * 1024,
};

struct AttentionTask {
  const void* q;  // first row, first head of the group; rows are row_stride elements apart
  void* out;      // likewise
  int64_t row_stride;
  int num_rows;
  int group_size;  // query heads that share the KV head
  int head_dim;
  float scale;
  float soft_cap;      // 0: none
  const float* sinks;  // [group_size] of the group's heads: see TreeAttentionArgs; or null

  const void* keys;
  const void* values;
  const int32_t* block_table;  // of the request
  int block_size;              // a multiple of 16
  int num_blocks;              // of the cache
  int kv_head;

  int base_len;        // committed tokens
  int first_row;       // index of the task's first row among the request's rows
  int sliding_window;  // 0: none
  // [num_rows, mask_words] masks of the slots from base_len on that each row sees, its own
  // included; null for a chain.
  const uint64_t* mask;
  int mask_words;
  int num_tree_slots;  // bits per mask row

  // Chunks to compute. Some row of the task sees each chunk of [first_chunk, chunk_limit).
  int chunk_begin, chunk_end;
  int first_chunk, chunk_limit;
  int first_position;  // first position that any row sees
  // Partial results of all chunks [chunk_limit - first_chunk, num_rows * group_size, accumulator
  // stride + kPartialExtra], where other tasks compute some of the chunks; null: this task writes
  // out itself.
  float* partials;

  // Scratch of the calling thread, 64-byte aligned; its contents mean nothing before or after.
  // `pairs` is num_rows * group_size, the accumulator stride head_dim rounded up to 16.
  float* scores;        // [pairs, kScoreStride]
  float* accumulators;  // [2, pairs, accumulator stride + kPartialExtra]
  float* tail_scores;   // [pairs, tail_stride], only with a mask
  int tail_stride;      // at least num_tree_slots + 128
  int32_t* tail_slots;  // [num_rows, num_tree_slots], only with a mask
  void* blocks;         // kAttentionBlockBytes or 4 groups, whichever is more
  void* groups;         // 3 groups
  void* tail_groups;    // of num_tree_slots + 30 slots, only with a mask over int8
};

// Moves the keys and values of one token, for one layer and KV head.
struct KvCopyTask {
  void* keys;
  void* values;
  int block_size;
  int num_blocks;
  int kv_head;
  int head_dim;
  int64_t from;  // slot: block * block_size + offset
  int64_t to;
};

// Kernels for one combination of activations and cache. `next` is a task whose keys will be read
// soon, or null.
struct AttentionKernels {
  void (*attend)(const AttentionTask& task, const AttentionTask* next);
  // Merges the partials of all chunks and writes out.
  void (*finish)(const AttentionTask& task);
  void (*copy_token)(const KvCopyTask& task);
  int64_t (*group_bytes)(int head_dim);  // 16 tokens of a KV head, keys or values
};

// dtypes of the activations and of the cache
enum KvKind : int { kKvBf16, kKvF32, kKvBf16I8, kKvF32I8, kNumKvKinds };

struct AttentionKernelSet {
  AttentionKernels by_kind[kNumKvKinds];
};

}  // namespace specdec::cpu
