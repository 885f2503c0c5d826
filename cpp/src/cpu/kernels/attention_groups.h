// Where the groups of keys and values of a task lie in the cache. Only for files compiled once per
// ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/kv_layout.h"

namespace specdec::cpu::SPECDEC_ISA {

inline constexpr int kChunkGroups = kAttentionChunk / kGroupTokens;

// Groups of keys or values: the ones being worked on, and the ones to prefetch.
template <class Word>
struct Block {
  int first_group = 0;  // in the chunk
  int num_groups = 0;
  const Word* groups[kChunkGroups];
  const char* ahead[kChunkGroups];
};

// Byte offsets of the groups of a chunk from the first group. Indices outside [begin, end) repeat
// the nearest group, so prefetch needs no bounds check.
struct GroupOffsets {
  int64_t offsets[2 * kChunkGroups];
};

template <class Stored>
const char* group_at(const AttentionTask& task, const void* base, int slot) {
  const int64_t physical =
      int64_t{task.block_table[slot / task.block_size]} * task.block_size + slot % task.block_size;
  return static_cast<const char*>(base) +
         group_index(physical, task.kv_head, task.num_blocks, task.block_size) *
             group_bytes<Stored>(task.head_dim);
}

// Locates groups [begin, end) of the chunk that begins at slot `first`.
template <class Stored>
void locate_groups(const AttentionTask& task, int first, int begin, int end, GroupOffsets& groups) {
  const int groups_per_block = task.block_size / kGroupTokens;
  const int64_t bytes = group_bytes<Stored>(task.head_dim);
  const int64_t head = group_index(0, task.kv_head, task.num_blocks, task.block_size) * bytes;
  int block = (first / kGroupTokens + begin) / groups_per_block;
  int within = (first / kGroupTokens + begin) % groups_per_block;
  for (int g = begin; g < end; ++g) {
    const int64_t index = int64_t{task.block_table[block]} * groups_per_block + within;
    groups.offsets[g] = head + index * bytes;
    if (++within == groups_per_block) {
      within = 0;
      ++block;
    }
  }
  for (int g = 0; g < begin; ++g) groups.offsets[g] = groups.offsets[begin];
  for (int g = end; g < 2 * kChunkGroups; ++g) groups.offsets[g] = groups.offsets[end - 1];
}

}  // namespace specdec::cpu::SPECDEC_ISA
