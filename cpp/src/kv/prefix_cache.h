// A radix tree over full blocks of committed tokens: the path of block contents from the root names
// a prefix, the node holds the block with its KV. Compares tokens, not hashes, so a hit is exact.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace specdec {

class PrefixCache {
 public:
  // Registers itself as the pool's eviction listener; the pool must outlive the cache.
  PrefixCache(BlockPool& pool, int block_size);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest cached run of full blocks that starts `tokens` and covers at most `max_tokens`.
  std::vector<BlockRef> match(std::span<const int32_t> tokens, int max_tokens);

  // Makes the full blocks of a sequence findable: `tokens` are committed (their KV is written) and
  // lie in `blocks`. Where a prefix is cached already in another block, that one stays.
  void insert(std::span<const int32_t> tokens, const BlockTable& blocks);

  // Drops every cached block nobody refers to; returns how many.
  int reset();

  int num_cached_blocks() const;
  void check_integrity() const;

 private:
  struct Node;
  void forget(BlockId id);

  BlockPool& pool_;
  int block_size_;
  std::unique_ptr<Node> root_;
  std::unordered_map<BlockId, Node*> nodes_;  // by block
};

}  // namespace specdec
