// The KV cache's bookkeeping: which blocks are in use, by how many owners, and which may be
// evicted. It does not know the storage. Block 0 is the null block (padding in device batches) and
// is never given out; the usable ids are 1..num_blocks. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace specdec {

using BlockId = int32_t;
inline constexpr BlockId kNullBlock = 0;

class BlockPool;

// Shared ownership of one block, counted in its pool. The pool must outlive its references.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other) noexcept;
  BlockRef(BlockRef&& other) noexcept;
  BlockRef& operator=(BlockRef other) noexcept;
  ~BlockRef();

  BlockId id() const { return id_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}  // adopts one reference

  BlockPool* pool_ = nullptr;
  BlockId id_ = kNullBlock;
};

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block without an owner: a free one, or else the least recently used cached one (its eviction
  // is announced first). Empty when every block has an owner.
  std::optional<BlockRef> allocate();

  // Another reference to a block that is in use or cached.
  BlockRef share(BlockId id);

  // A cached block keeps its content when its last reference is released: it becomes evictable, not
  // free. Only a block in use can become cached.
  void set_cached(BlockId id, bool cached);
  bool is_cached(BlockId id) const;

  // Called with a block just before allocate() reuses it (the prefix cache forgets the block). It
  // may uncache other blocks too, and must not throw.
  void set_eviction_listener(std::function<void(BlockId)> listener);

  int num_blocks() const { return static_cast<int>(states_.size()) - 1; }
  int num_free() const;       // allocatable: free and evictable
  int num_evictable() const;  // cached with no reference
  int ref_count(BlockId id) const;
  // How many times allocate() has handed the block out. Users that keep data derived from a block's
  // content compare this number: if it has changed, the block has new content. Sharing and caching
  // do not change it.
  uint64_t generation(BlockId id) const;

  // Throws InternalError if a list or count contradicts another.
  void check_integrity() const;

 private:
  friend class BlockRef;
  // References come and go in destructors, so neither allocates nor throws.
  void acquire(BlockId id) noexcept;
  void release(BlockId id) noexcept;
  void check_usable(BlockId id) const;
  void link_evictable(BlockId id) noexcept;
  void unlink_evictable(BlockId id) noexcept;

  struct BlockState {
    int ref_count = 0;
    bool cached = false;
    BlockId previous = kNullBlock;  // neighbours in the evictable list, while in it
    BlockId next = kNullBlock;
    uint64_t generation = 0;
  };
  // By id. The null block's entry is the head of the evictable list: a ring, longest unused first.
  std::vector<BlockState> states_;
  std::vector<BlockId> free_;  // a stack; its capacity is num_blocks from the start
  int num_evictable_ = 0;
  std::function<void(BlockId)> eviction_listener_;
};

}  // namespace specdec
