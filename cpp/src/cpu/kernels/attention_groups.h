// Groups of keys and values in the order in which a task reads them, each with a group that is read
// later and prefetched meanwhile. Only for files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention_rows.h"

namespace specdec::cpu::SPECDEC_ISA {

inline constexpr int kChunkGroups = kAttentionChunk / kGroupTokens;

// Groups of keys or values: those being worked on, and those to be read next.
template <class Word>
struct Block {
  int first_group = 0;  // in the chunk
  int num_groups = 0;
  const Word* groups[kChunkGroups];
  const char* ahead[kChunkGroups];
};

// Where the groups of a chunk lie, in bytes from the first group of all. Entries outside
// [begin, end) repeat the nearest valid group, so that prefetching needs no bounds check.
struct ChunkPlaces {
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

// Groups [begin, end) of the chunk that begins at slot `first`.
template <class Stored>
void locate_groups(const AttentionTask& task, int first, int begin, int end, ChunkPlaces& places) {
  const int groups_per_block = task.block_size / kGroupTokens;
  const int64_t bytes = group_bytes<Stored>(task.head_dim);
  const int64_t head = group_index(0, task.kv_head, task.num_blocks, task.block_size) * bytes;
  int block = (first / kGroupTokens + begin) / groups_per_block;
  int within = (first / kGroupTokens + begin) % groups_per_block;
  for (int g = begin; g < end; ++g) {
    const int64_t index = int64_t{task.block_table[block]} * groups_per_block + within;
    places.offsets[g] = head + index * bytes;
    if (++within == groups_per_block) {
      within = 0;
      ++block;
    }
  }
  for (int g = 0; g < begin; ++g) places.offsets[g] = places.offsets[begin];
  for (int g = end; g < 2 * kChunkGroups; ++g) places.offsets[g] = places.offsets[end - 1];
}

template <class Word, class Stored>
class GroupReader {
 public:
  // `next` is the task whose keys are read after this one's, or null. Blocks have up to
  // `block_groups` groups.
  GroupReader(const AttentionTask& task, const AttentionTask* next, int shared_end,
              int block_groups)
      : task_(task), next_(next), shared_end_(shared_end), block_groups_(block_groups) {}

  int block_groups() const { return block_groups_; }

  // Finds the groups [begin, end) of a chunk, and the groups that are read after the chunk.
  void enter_chunk(int chunk, int begin, int end) {
    if (located_ == chunk) {
      here_ = after_;
    } else {
      locate_groups<Stored>(task_, chunk * kAttentionChunk, begin, end, here_);
    }
    const int first = (chunk + 1) * kAttentionChunk;
    keys_after_ = nullptr;
    if (chunk + 1 < task_.chunk_end && first < shared_end_) {
      located_ = chunk + 1;
      locate_groups<Stored>(task_, first, 0,
                            groups_below(min_of(shared_end_ - first, kAttentionChunk)), after_);
      keys_after_ = static_cast<const char*>(task_.keys);
      first_after_ = 0;
    } else if (chunk + 1 == task_.chunk_end && next_ != nullptr) {
      const int next_first = next_->chunk_begin * kAttentionChunk;
      const int next_begin = max_of(0, next_->first_position - next_first) / kGroupTokens;
      const int next_end = groups_below(min_of(next_->base_len - next_first, kAttentionChunk));
      if (next_begin >= next_end) return;
      locate_groups<Stored>(*next_, next_first, next_begin, next_end, after_);
      keys_after_ = static_cast<const char*>(next_->keys);
      first_after_ = next_begin;
    }
  }

  // Keys from group `first` of the chunk on. Ahead of them lie the chunk's next keys, and after its
  // last keys its values from group `first_value` on.
  void read_keys(int first, int end, int first_value, Block<Word>& block) const {
    fill(task_.keys, first, end, block);
    if (first + block_groups_ < end) {
      look_ahead(task_.keys, here_, first + block_groups_, block);
    } else {
      look_ahead(task_.values, here_, first_value, block);
    }
  }

  // Values from group `first` of the chunk on. Ahead of them lie the chunk's next values, and after
  // its last values the keys that are read after the chunk.
  void read_values(int first, int end, Block<Word>& block) const {
    fill(task_.values, first, end, block);
    if (first + block_groups_ < end) {
      look_ahead(task_.values, here_, first + block_groups_, block);
    } else if (keys_after_ != nullptr) {
      look_ahead(keys_after_, after_, first_after_, block);
    } else {
      look_ahead(task_.values, here_, first, block);
    }
  }

  const char* group(const void* base, int slot) const {
    return group_at<Stored>(task_, base, slot);
  }

  void prefetch_group(const char* start) const {
    for (int64_t i = 0; i < group_bytes<Stored>(task_.head_dim); i += kLineBytes) {
      __builtin_prefetch(start + i);
    }
  }

 private:
  void fill(const void* base, int first, int end, Block<Word>& block) const {
    block.first_group = first;
    block.num_groups = min_of(block_groups_, end - first);
    for (int g = 0; g < block_groups_; ++g) {
      const char* start = static_cast<const char*>(base) + here_.offsets[first + g];
      block.groups[g] = static_cast<const Word*>(static_cast<const void*>(start));
    }
  }
  void look_ahead(const void* base, const ChunkPlaces& places, int first,
                  Block<Word>& block) const {
    for (int g = 0; g < block_groups_; ++g) {
      block.ahead[g] = static_cast<const char*>(base) + places.offsets[first + g];
    }
  }

  const AttentionTask& task_;
  const AttentionTask* const next_;
  const int shared_end_;
  const int block_groups_;
  ChunkPlaces here_;                  // of the chunk that was entered last
  ChunkPlaces after_;                 // of the groups that are read after it
  int located_ = -1;                  // the chunk of this task that `after_` describes; -1: none
  const char* keys_after_ = nullptr;  // null: nothing is read after the chunk
  int first_after_ = 0;               // group of `after_`
};

}  // namespace specdec::cpu::SPECDEC_ISA
