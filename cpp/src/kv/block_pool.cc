#include "kv/block_pool.h"

#include <utility>

#include "core/check.h"

namespace specdec {

BlockRef::BlockRef(const BlockRef& other) noexcept : pool_(other.pool_), id_(other.id_) {
  if (pool_ != nullptr) pool_->acquire(id_);
}

BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, kNullBlock)) {}

BlockRef& BlockRef::operator=(BlockRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(id_, other.id_);
  return *this;
}

BlockRef::~BlockRef() {
  if (pool_ != nullptr) pool_->release(id_);
}

BlockPool::BlockPool(int num_blocks) {
  SPECDEC_CHECK_GE(num_blocks, 1);
  states_.resize(static_cast<size_t>(num_blocks) + 1);
  free_.reserve(num_blocks);
  for (BlockId id = num_blocks; id > kNullBlock; --id) free_.push_back(id);  // low ids go out first
}

std::optional<BlockRef> BlockPool::allocate() {
  if (free_.empty()) {
    if (num_evictable_ == 0) return std::nullopt;
    const BlockId victim = states_[kNullBlock].next;
    if (eviction_listener_) eviction_listener_(victim);
    set_cached(victim, false);
  }
  const BlockId id = free_.back();
  free_.pop_back();
  states_[id].ref_count = 1;
  ++states_[id].generation;
  return BlockRef(this, id);
}

BlockRef BlockPool::share(BlockId id) {
  check_usable(id);
  SPECDEC_CHECK(states_[id].ref_count > 0 || states_[id].cached);
  acquire(id);
  return BlockRef(this, id);
}

void BlockPool::set_cached(BlockId id, bool cached) {
  check_usable(id);
  BlockState& state = states_[id];
  if (state.cached == cached) return;
  if (cached) SPECDEC_CHECK_GT(state.ref_count, 0);
  state.cached = cached;
  if (state.ref_count == 0) {
    unlink_evictable(id);
    free_.push_back(id);
  }
}

bool BlockPool::is_cached(BlockId id) const {
  check_usable(id);
  return states_[id].cached;
}

void BlockPool::set_eviction_listener(std::function<void(BlockId)> listener) {
  eviction_listener_ = std::move(listener);
}

int BlockPool::num_free() const { return static_cast<int>(free_.size()) + num_evictable_; }

int BlockPool::num_evictable() const { return num_evictable_; }

int BlockPool::ref_count(BlockId id) const {
  check_usable(id);
  return states_[id].ref_count;
}

uint64_t BlockPool::generation(BlockId id) const {
  check_usable(id);
  return states_[id].generation;
}

void BlockPool::check_usable(BlockId id) const {
  SPECDEC_CHECK_GT(id, kNullBlock);
  SPECDEC_CHECK_LE(id, num_blocks());
}

void BlockPool::acquire(BlockId id) noexcept {
  BlockState& state = states_[id];
  if (state.ref_count == 0) unlink_evictable(id);
  ++state.ref_count;
}

void BlockPool::release(BlockId id) noexcept {
  BlockState& state = states_[id];
  if (--state.ref_count > 0) return;
  if (state.cached) {
    link_evictable(id);
  } else {
    free_.push_back(id);
  }
}

void BlockPool::link_evictable(BlockId id) noexcept {
  BlockState& head = states_[kNullBlock];
  states_[id].previous = head.previous;
  states_[id].next = kNullBlock;
  states_[head.previous].next = id;
  head.previous = id;
  ++num_evictable_;
}

void BlockPool::unlink_evictable(BlockId id) noexcept {
  BlockState& state = states_[id];
  states_[state.previous].next = state.next;
  states_[state.next].previous = state.previous;
  state.previous = state.next = kNullBlock;
  --num_evictable_;
}

void BlockPool::check_integrity() const {
  SPECDEC_CHECK_EQ(states_[kNullBlock].ref_count, 0);
  SPECDEC_CHECK(!states_[kNullBlock].cached);

  enum class Use : char { kInUse, kFree, kEvictable };
  std::vector<Use> uses(states_.size(), Use::kInUse);
  for (const BlockId id : free_) {
    check_usable(id);
    SPECDEC_CHECK(uses[id] == Use::kInUse);  // in the list once
    uses[id] = Use::kFree;
  }
  int num_linked = 0;
  for (BlockId previous = kNullBlock, id = states_[kNullBlock].next; id != kNullBlock;
       previous = id, id = states_[id].next) {
    check_usable(id);
    SPECDEC_CHECK(uses[id] == Use::kInUse);
    SPECDEC_CHECK_EQ(states_[id].previous, previous);
    uses[id] = Use::kEvictable;
    ++num_linked;
  }
  SPECDEC_CHECK_EQ(num_linked, num_evictable_);

  for (BlockId id = 1; id <= num_blocks(); ++id) {
    const BlockState& state = states_[id];
    SPECDEC_CHECK_GE(state.ref_count, 0);
    const Use expected = state.ref_count > 0 ? Use::kInUse
                         : state.cached      ? Use::kEvictable
                                             : Use::kFree;
    SPECDEC_CHECK(uses[id] == expected);
  }
}

}  // namespace specdec
