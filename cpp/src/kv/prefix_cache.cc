#include "kv/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/check.h"

namespace specdec {

PrefixCache::PrefixCache(BlockPool& pool, int block_size, BlockPool* states)
    : pool_(pool),
      states_(states),
      block_size_(block_size),
      nodes_(static_cast<size_t>(pool.num_blocks()) + 1),
      edges_(0, EdgeHash{this}, EdgeEqual{this}),
      reset_generations_(nodes_.size()) {
  SPECDEC_CHECK_GE(block_size, 1);
  tokens_.resize(nodes_.size() * block_size);
  edges_.reserve(pool.num_blocks());  // no rehash while serving
  pool_.set_eviction_listener([this](BlockId block) { forget(block); });
  if (states_ == nullptr) return;
  nodes_of_states_.assign(static_cast<size_t>(states_->num_blocks()) + 1, kNullBlock);
  states_->set_eviction_listener([this](BlockId state) { forget_state(nodes_of_states_[state]); });
}

PrefixCache::~PrefixCache() {
  pool_.set_eviction_listener(nullptr);
  if (states_ != nullptr) states_->set_eviction_listener(nullptr);
  for (const BlockId block : edges_) {
    forget_state(block);
    pool_.set_cached(block, false);
  }
}

PrefixMatch PrefixCache::match(std::span<const int32_t> tokens, int max_tokens,
                               std::string_view salt) {
  const int64_t limit = std::min<int64_t>(max_tokens, static_cast<int64_t>(tokens.size()));
  std::vector<BlockId> path;
  size_t num_blocks = 0;  // of the path, that the caller can use
  BlockId node = kNullBlock;
  for (int64_t begin = 0; begin + block_size_ <= limit; begin += block_size_) {
    node = find_child(make_edge(node, tokens.subspan(begin, block_size_), salt));
    if (node == kNullBlock) break;
    path.push_back(node);
    if (states_ == nullptr || nodes_[node].state != kNullBlock) num_blocks = path.size();
  }
  PrefixMatch match;
  match.num_known_tokens = static_cast<int>(path.size()) * block_size_;
  for (size_t i = 0; i < num_blocks; ++i) match.blocks.push_back(pool_.share(path[i]));
  if (states_ != nullptr && num_blocks > 0) {
    match.state = states_->share(nodes_[path[num_blocks - 1]].state);
  }
  return match;
}

void PrefixCache::insert(std::span<const int32_t> tokens, const BlockTable& blocks,
                         std::string_view salt) {
  SPECDEC_CHECK_EQ(blocks.block_size(), block_size_);
  const int num_full = static_cast<int>(tokens.size() / block_size_);
  SPECDEC_CHECK_LE(num_full, blocks.num_blocks());
  if (precedes_reset(blocks)) return;
  const std::span<const BlockId> ids = blocks.ids();

  BlockId node = deepest_own(blocks, num_full);
  for (int depth = nodes_[node].depth; depth < num_full; ++depth) {
    const Edge edge = make_edge(
        node, tokens.subspan(static_cast<size_t>(depth) * block_size_, block_size_), salt);
    BlockId child = find_child(edge);
    if (child == kNullBlock) {
      child = ids[depth];
      add_child(edge, child);
    }
    node = child;
  }
}

void PrefixCache::insert_state(std::span<const int32_t> tokens, const BlockTable& blocks,
                               std::string_view salt, const BlockRef& state) {
  SPECDEC_CHECK(states_ != nullptr && static_cast<bool>(state));
  const BlockId block = find(tokens, blocks, salt);
  if (block == kNullBlock || nodes_[block].state != kNullBlock) return;
  states_->set_cached(state.id(), true);
  nodes_[block].state = state.id();
  nodes_of_states_[state.id()] = block;
}

void PrefixCache::drop_state(std::span<const int32_t> tokens, const BlockTable& blocks,
                             std::string_view salt) {
  const BlockId block = find(tokens, blocks, salt);
  if (block == kNullBlock || nodes_[block].state == kNullBlock) return;
  if (states_->ref_count(nodes_[block].state) == 0) forget_state(block);
}

int PrefixCache::num_cached_states() const {
  return static_cast<int>(std::ranges::count_if(
      edges_, [this](BlockId block) { return nodes_[block].state != kNullBlock; }));
}

int PrefixCache::reset() {
  const int num_dropped = num_cached_blocks();
  while (nodes_[kNullBlock].first_child != kNullBlock) forget(nodes_[kNullBlock].first_child);
  for (BlockId block = 1; block <= pool_.num_blocks(); ++block) {
    reset_generations_[block] = pool_.ref_count(block) > 0 ? pool_.generation(block) : 0;
  }
  return num_dropped;
}

// A sequence keeps its first block until it has none.
bool PrefixCache::precedes_reset(const BlockTable& blocks) const {
  if (blocks.num_blocks() == 0) return false;
  const BlockId first = blocks.ids()[0];
  return reset_generations_[first] == pool_.generation(first);
}

bool PrefixCache::EdgeEqual::operator()(const Edge& edge, BlockId child) const {
  const Node& node = cache->nodes_[child];
  return node.parent == edge.parent && node.salt == edge.salt &&
         std::ranges::equal(cache->edge_tokens(child), edge.tokens);
}

// Multiplies and folds, one token at a time. The hash only spreads the edges over the table; a
// comparison of salts and tokens decides.
size_t PrefixCache::hash_edge(BlockId parent, std::span<const int32_t> tokens,
                              std::string_view salt) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = (static_cast<uint64_t>(parent) + 1) * kMultiplier;
  if (!salt.empty()) hash ^= std::hash<std::string_view>{}(salt);
  for (const int32_t token : tokens) {
    hash = (hash ^ (hash >> 32) ^ static_cast<uint32_t>(token)) * kMultiplier;
  }
  return static_cast<size_t>(hash ^ (hash >> 32));
}

std::span<const int32_t> PrefixCache::edge_tokens(BlockId child) const {
  return std::span(tokens_).subspan(static_cast<size_t>(child) * block_size_, block_size_);
}

BlockId PrefixCache::find_child(const Edge& edge) const {
  const auto found = edges_.find(edge);
  return found == edges_.end() ? kNullBlock : *found;
}

// A block of a sequence that is in the tree ends the sequence's own prefix there. Walks therefore
// start at the deepest such block instead of at the root.
BlockId PrefixCache::deepest_own(const BlockTable& blocks, int num_full) const {
  const std::span<const BlockId> ids = blocks.ids();
  int depth = num_full;
  while (depth > 0 && nodes_[ids[depth - 1]].depth == 0) --depth;
  const BlockId node = depth > 0 ? ids[depth - 1] : kNullBlock;
  SPECDEC_CHECK_EQ(nodes_[node].depth, depth);
  return node;
}

BlockId PrefixCache::find(std::span<const int32_t> tokens, const BlockTable& blocks,
                          std::string_view salt) const {
  const int num_tokens = static_cast<int>(tokens.size());
  const int num_full = num_tokens / block_size_;
  SPECDEC_CHECK_EQ(num_tokens, num_full * block_size_);
  if (precedes_reset(blocks)) return kNullBlock;
  BlockId node = deepest_own(blocks, num_full);
  for (int depth = nodes_[node].depth; depth < num_full; ++depth) {
    const auto begin = static_cast<size_t>(depth) * block_size_;
    node = find_child(make_edge(node, tokens.subspan(begin, block_size_), salt));
    if (node == kNullBlock) return kNullBlock;
  }
  return node;
}

void PrefixCache::forget_state(BlockId block) {
  const BlockId state = std::exchange(nodes_[block].state, kNullBlock);
  if (state == kNullBlock) return;
  nodes_of_states_[state] = kNullBlock;
  states_->set_cached(state, false);
}

void PrefixCache::add_child(const Edge& edge, BlockId block) {
  Node& node = nodes_[block];
  SPECDEC_CHECK_EQ(node.depth, 0);
  node = {.parent = edge.parent, .edge_hash = edge.hash, .salt = std::string(edge.salt)};
  std::ranges::copy(edge.tokens, tokens_.begin() + static_cast<ptrdiff_t>(block) * block_size_);
  edges_.insert(block);  // may throw; nothing points to the node yet
  node.depth = nodes_[edge.parent].depth + 1;
  const BlockId sibling = nodes_[edge.parent].first_child;
  node.next_sibling = sibling;
  if (sibling != kNullBlock) nodes_[sibling].previous_sibling = block;
  nodes_[edge.parent].first_child = block;
  pool_.set_cached(block, true);
}

void PrefixCache::forget(BlockId block) {
  SPECDEC_CHECK_GT(nodes_[block].depth, 0);
  // Removes leaves first and follows the links in a loop: the tree may be deeper than a call stack.
  for (BlockId node = block;;) {
    while (nodes_[node].first_child != kNullBlock) node = nodes_[node].first_child;
    const BlockId parent = nodes_[node].parent;
    remove_leaf(node);
    if (node == block) return;
    node = parent;
  }
}

void PrefixCache::remove_leaf(BlockId block) {
  Node& node = nodes_[block];
  forget_state(block);
  edges_.erase(block);
  if (node.previous_sibling != kNullBlock) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != kNullBlock) {
    nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  }
  node = {};
  pool_.set_cached(block, false);
}

void PrefixCache::check_integrity() const {
  size_t num_nodes = 0;
  for (BlockId block = 1; block <= pool_.num_blocks(); ++block) {
    const Node& node = nodes_[block];
    SPECDEC_CHECK_EQ(pool_.is_cached(block), node.depth > 0);
    if (node.state != kNullBlock) {
      SPECDEC_CHECK(node.depth > 0 && states_->is_cached(node.state));
      SPECDEC_CHECK_EQ(nodes_of_states_[node.state], block);
    }
    if (node.depth == 0) continue;
    ++num_nodes;
    SPECDEC_CHECK_EQ(node.depth, nodes_[node.parent].depth + 1);
    SPECDEC_CHECK(node.parent == kNullBlock || nodes_[node.parent].depth > 0);
    SPECDEC_CHECK(node.parent == kNullBlock || node.salt.empty());
    SPECDEC_CHECK_EQ(find_child(make_edge(node.parent, edge_tokens(block), node.salt)), block);
  }
  SPECDEC_CHECK_EQ(num_nodes, edges_.size());

  // Every node hangs in exactly one list of children, its parent's.
  size_t num_linked = 0;
  for (BlockId parent = kNullBlock; parent <= pool_.num_blocks(); ++parent) {
    BlockId previous = kNullBlock;
    for (BlockId child = nodes_[parent].first_child; child != kNullBlock;
         child = nodes_[child].next_sibling) {
      SPECDEC_CHECK_EQ(nodes_[child].parent, parent);
      SPECDEC_CHECK_EQ(nodes_[child].previous_sibling, previous);
      SPECDEC_CHECK_LE(++num_linked, num_nodes);
      previous = child;
    }
  }
  SPECDEC_CHECK_EQ(num_linked, num_nodes);
}

}  // namespace specdec
