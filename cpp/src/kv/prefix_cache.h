// A radix tree over full blocks of committed tokens: the path of block contents from the root is a
// prefix, and the node holds the block with its KV. Tokens are compared, not hashes, so a hit is
// exact. The edges below the root also carry a salt: prefixes of different salts share no block.
//
// For models with recurrent layers a node may also hold a state: that after the last token of its
// block. States have a pool of their own, and are evicted by themselves. Without a state at its
// end, a prefix is no hit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace specdec {

// What the cache has of a sequence's tokens.
struct PrefixMatch {
  std::vector<BlockRef> blocks;
  BlockRef state;            // after the last of these blocks; none without blocks or states
  int num_known_tokens = 0;  // in cached blocks; with states this may be more than `blocks` have
};

class PrefixCache {
 public:
  // Registers itself as the pools' eviction listener; the pools must outlive the cache. `states`:
  // of models with recurrent layers, else null.
  PrefixCache(BlockPool& pool, int block_size, BlockPool* states = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest cached run of full blocks that starts `tokens`, was inserted with the same `salt`
  // and covers at most `max_tokens`; with states, the longest that ends with one.
  PrefixMatch match(std::span<const int32_t> tokens, int max_tokens, std::string_view salt = {});

  // Caches the full blocks of a sequence: `tokens` are committed (their KV is written) and stored
  // in `blocks`. Where another block already holds the same prefix, the cache keeps that other
  // block.
  void insert(std::span<const int32_t> tokens, const BlockTable& blocks,
              std::string_view salt = {});

  // Caches the state after `tokens`, full blocks of a sequence that are stored in `blocks`. Does
  // nothing where the prefix is not cached, or has a state.
  void insert_state(std::span<const int32_t> tokens, const BlockTable& blocks,
                    std::string_view salt, const BlockRef& state);
  // Drops the state after `tokens`, unless somebody refers to it.
  void drop_state(std::span<const int32_t> tokens, const BlockTable& blocks, std::string_view salt);

  // Drops every cached block and state; returns how many blocks. Blocks in use stay with their
  // owners, and insert() never caches them, nor any that follow them: after a reset matches have
  // only what was computed after it.
  int reset();

  // The hash of the edge from `parent` over `tokens`. Public so that tests can make two collide.
  static size_t hash_edge(BlockId parent, std::span<const int32_t> tokens,
                          std::string_view salt = {});

  int num_cached_blocks() const { return static_cast<int>(edges_.size()); }
  int num_cached_states() const;
  void check_integrity() const;

 private:
  // A cached block. Nodes are addressed by block id; the null block's node is the root.
  struct Node {
    BlockId parent = kNullBlock;
    BlockId first_child = kNullBlock;
    BlockId next_sibling = kNullBlock;
    BlockId previous_sibling = kNullBlock;
    int depth = 0;               // blocks from the root to here; 0: not in the tree (or the root)
    BlockId state = kNullBlock;  // of the pool of states; null: none
    size_t edge_hash = 0;
    std::string salt = {};  // of the edge; empty below other nodes than the root
  };
  // The way down from a parent: the tokens of one block, from the root also the salt.
  struct Edge {
    BlockId parent;
    std::span<const int32_t> tokens;  // [block_size]
    std::string_view salt;
    size_t hash;
  };
  // edges_ holds child nodes, looked up by the edge that leads to them.
  struct EdgeHash {
    using is_transparent = void;
    const PrefixCache* cache;
    size_t operator()(BlockId child) const { return cache->nodes_[child].edge_hash; }
    size_t operator()(const Edge& edge) const { return edge.hash; }
  };
  struct EdgeEqual {
    using is_transparent = void;
    const PrefixCache* cache;
    bool operator()(BlockId a, BlockId b) const { return a == b; }
    bool operator()(const Edge& edge, BlockId child) const;
    bool operator()(BlockId child, const Edge& edge) const { return (*this)(edge, child); }
  };

  static Edge make_edge(BlockId parent, std::span<const int32_t> tokens, std::string_view salt) {
    if (parent != kNullBlock) salt = {};
    return {
        .parent = parent, .tokens = tokens, .salt = salt, .hash = hash_edge(parent, tokens, salt)};
  }
  std::span<const int32_t> edge_tokens(BlockId child) const;
  BlockId find_child(const Edge& edge) const;  // the null block where there is none
  void add_child(const Edge& edge, BlockId block);
  // The deepest of a sequence's first `num_full` own blocks that is in the tree: there its own
  // prefix ends. Null: none is.
  BlockId deepest_own(const BlockTable& blocks, int num_full) const;
  // The node of `tokens`, full blocks of a sequence; null where the tree has none.
  BlockId find(std::span<const int32_t> tokens, const BlockTable& blocks,
               std::string_view salt) const;
  // Whether a sequence with these blocks began before the latest reset.
  bool precedes_reset(const BlockTable& blocks) const;
  void forget_state(BlockId block);
  // Takes a block and all blocks below it out of the tree. Does not allocate.
  void forget(BlockId block);
  void remove_leaf(BlockId block);

  BlockPool& pool_;
  BlockPool* states_;  // null: the model has none
  const int block_size_;
  std::vector<BlockId> nodes_of_states_;  // by state: the block whose node holds it
  std::vector<Node> nodes_;               // by block id
  std::vector<int32_t> tokens_;           // [num_blocks + 1, block_size], the edge to each node
  std::unordered_set<BlockId, EdgeHash, EdgeEqual> edges_;
  // By block id: the pool's generation of a block that was in use at the latest reset; 0: it was
  // not.
  std::vector<uint64_t> reset_generations_;
};

}  // namespace specdec
