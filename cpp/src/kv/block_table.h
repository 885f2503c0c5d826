// The blocks of one sequence, in order of position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace specdec {

class BlockTable {
 public:
  explicit BlockTable(int block_size);
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  // Makes room for `num_tokens` slots in all. On shortage returns false and takes nothing.
  bool reserve(BlockPool& pool, int num_tokens);
  // Gives back the blocks that lie wholly past `num_tokens` slots (tail first).
  void truncate(int num_tokens);
  // Starts the table with shared blocks (a prefix-cache hit). The table must be empty.
  void adopt(std::vector<BlockRef> blocks);
  // Gives back all blocks, last one first, so that a block is evicted before the blocks it follows.
  void clear() noexcept;

  int num_blocks() const { return static_cast<int>(refs_.size()); }
  int capacity_tokens() const { return num_blocks() * block_size_; }
  int block_size() const { return block_size_; }
  std::span<const BlockId> ids() const { return ids_; }
  // Physical slot of a logical one: block id * block_size + offset.
  int64_t slot(int token_index) const {
    return static_cast<int64_t>(ids_[token_index / block_size_]) * block_size_ +
           token_index % block_size_;
  }

 private:
  void drop_tail(size_t num_kept) noexcept;

  int block_size_;
  std::vector<BlockRef> refs_;
  std::vector<BlockId> ids_;  // the same, as a plain array for batches
};

// Blocks that `num_tokens` slots take.
constexpr int num_blocks_for(int num_tokens, int block_size) {
  return num_tokens / block_size + (num_tokens % block_size != 0 ? 1 : 0);
}

}  // namespace specdec
