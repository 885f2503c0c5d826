#include "kv/block_table.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace specdec {

BlockTable::BlockTable(int block_size) : block_size_(block_size) {
  SPECDEC_CHECK_GE(block_size, 1);
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  clear();
  block_size_ = other.block_size_;
  refs_ = std::move(other.refs_);
  ids_ = std::move(other.ids_);
  return *this;
}

bool BlockTable::reserve(BlockPool& pool, int num_tokens) {
  SPECDEC_CHECK_GE(num_tokens, 0);
  const int num_wanted = num_blocks_for(num_tokens, block_size_);
  const int num_missing = num_wanted - num_blocks();
  if (num_missing <= 0) return true;
  if (num_missing > pool.num_free()) return false;
  // Both arrays grow before a block is taken, by doubling, so that no push_back below can throw.
  if (refs_.capacity() < static_cast<size_t>(num_wanted)) {
    refs_.reserve(std::max<size_t>(num_wanted, 2 * refs_.size()));
  }
  ids_.reserve(refs_.capacity());
  for (int i = 0; i < num_missing; ++i) {
    std::optional<BlockRef> block = pool.allocate();
    SPECDEC_CHECK(block.has_value());
    ids_.push_back(block->id());
    refs_.push_back(*std::move(block));
  }
  return true;
}

void BlockTable::truncate(int num_tokens) {
  SPECDEC_CHECK_GE(num_tokens, 0);
  drop_tail(num_blocks_for(num_tokens, block_size_));
}

void BlockTable::adopt(std::vector<BlockRef> blocks) {
  SPECDEC_CHECK(refs_.empty());
  std::vector<BlockId> ids;
  ids.reserve(blocks.size());
  for (const BlockRef& block : blocks) {
    SPECDEC_CHECK(static_cast<bool>(block));
    ids.push_back(block.id());
  }
  refs_ = std::move(blocks);
  ids_ = std::move(ids);
}

void BlockTable::clear() noexcept { drop_tail(0); }

void BlockTable::drop_tail(size_t num_kept) noexcept {
  while (refs_.size() > num_kept) {
    refs_.pop_back();
    ids_.pop_back();
  }
}

}  // namespace specdec
