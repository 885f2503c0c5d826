#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

TEST(BlockPoolTest, GivesOutEveryUsableBlockOnceAndNeverTheNullBlock) {
  BlockPool pool(3);
  std::vector<BlockRef> refs;
  std::set<BlockId> ids;
  for (int i = 0; i < 3; ++i) {
    refs.push_back(*pool.allocate());
    ids.insert(refs.back().id());
  }
  EXPECT_EQ(ids, (std::set<BlockId>{1, 2, 3}));
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.check_integrity();
}

TEST(BlockPoolTest, ReleasingLastRefReturnsBlock) {
  BlockPool pool(1);
  BlockRef first = *pool.allocate();
  BlockRef second = first;
  EXPECT_EQ(pool.ref_count(1), 2);
  first = BlockRef();
  EXPECT_EQ(pool.num_free(), 0);
  second = BlockRef();
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_evictable(), 0);
  pool.check_integrity();
}

TEST(BlockPoolTest, MovingARefKeepsTheCount) {
  BlockPool pool(1);
  BlockRef first = *pool.allocate();
  BlockRef second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_TRUE(second);
  EXPECT_EQ(pool.ref_count(1), 1);
  BlockRef& alias = second;
  second = alias;  // self-assignment
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_EQ(second.id(), 1);
}

TEST(BlockPoolTest, CachedBlockBecomesEvictableNotFree) {
  BlockPool pool(2);
  BlockRef ref = *pool.allocate();
  const BlockId id = ref.id();
  pool.set_cached(id, true);
  ref = BlockRef();
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_evictable(), 1);
  // The free block goes out first, the cached one keeps its content.
  BlockRef other = *pool.allocate();
  EXPECT_NE(other.id(), id);
  EXPECT_TRUE(pool.is_cached(id));
  // Sharing takes it out of reach of eviction.
  ref = pool.share(id);
  EXPECT_EQ(pool.num_evictable(), 0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.check_integrity();
}

TEST(BlockPoolTest, EvictsTheBlockUnusedForLongestAndAnnouncesIt) {
  BlockPool pool(3);
  std::vector<BlockId> announced;
  pool.set_eviction_listener([&](BlockId id) { announced.push_back(id); });
  std::vector<BlockRef> refs;
  for (int i = 0; i < 3; ++i) refs.push_back(*pool.allocate());
  for (BlockId id = 1; id <= 3; ++id) pool.set_cached(id, true);
  const auto release = [&](BlockId id) {
    for (BlockRef& ref : refs) {
      if (ref.id() == id) ref = BlockRef();
    }
  };
  release(2);
  release(3);
  release(1);
  pool.share(2);  // used again for a moment: now the most recent

  EXPECT_EQ(pool.allocate()->id(), 3);
  EXPECT_FALSE(pool.is_cached(3));
  EXPECT_EQ(announced, (std::vector<BlockId>{3}));
  std::vector<BlockRef> rest;
  while (std::optional<BlockRef> ref = pool.allocate()) rest.push_back(*ref);
  EXPECT_EQ(announced, (std::vector<BlockId>{3, 1, 2}));
  pool.check_integrity();
}

TEST(BlockPoolTest, UncachingAnUnusedBlockFreesIt) {
  BlockPool pool(1);
  BlockRef ref = *pool.allocate();
  pool.set_cached(1, true);
  ref = BlockRef();
  pool.set_cached(1, false);
  EXPECT_EQ(pool.num_evictable(), 0);
  EXPECT_EQ(pool.num_free(), 1);
  pool.check_integrity();
}

TEST(BlockPoolTest, GenerationRisesWhenABlockIsHandedOutAndNotWhenItIsReused) {
  BlockPool pool(1);
  EXPECT_EQ(pool.generation(1), 0u);
  BlockRef ref = *pool.allocate();
  EXPECT_EQ(pool.generation(1), 1u);
  BlockRef other = pool.share(1);
  other = BlockRef();
  pool.set_cached(1, true);
  ref = BlockRef();
  ref = pool.share(1);  // a prefix-cache hit
  EXPECT_EQ(pool.generation(1), 1u);
  ref = BlockRef();
  ref = *pool.allocate();  // evicts it
  EXPECT_EQ(pool.generation(1), 2u);
  ref = BlockRef();
  EXPECT_EQ(pool.generation(1), 2u);
  ref = *pool.allocate();
  EXPECT_EQ(pool.generation(1), 3u);
}

TEST(BlockPoolTest, RefusesMisuse) {
  BlockPool pool(2);
  EXPECT_THROW(pool.generation(kNullBlock), InternalError);
  EXPECT_THROW(pool.generation(3), InternalError);
  EXPECT_THROW(pool.share(kNullBlock), InternalError);
  EXPECT_THROW(pool.share(3), InternalError);
  EXPECT_THROW(pool.share(1), InternalError);             // free: nothing to share
  EXPECT_THROW(pool.set_cached(1, true), InternalError);  // free: has no content
  EXPECT_THROW(pool.ref_count(-1), InternalError);
  EXPECT_THROW(BlockPool(0), InternalError);
  pool.check_integrity();
}

// A plain model of the pool: counts by id, and the cached blocks without a reference in the order
// in which they lost the last one.
struct PoolModel {
  std::map<BlockId, int> ref_counts;
  std::map<BlockId, uint64_t> generations;
  std::set<BlockId> cached;
  std::deque<BlockId> unused;  // cached, no reference; longest unused first

  void drop_unused(BlockId id) { std::erase(unused, id); }
};

TEST(BlockPoolTest, AgreesWithAPlainModelOverRandomOperations) {
  constexpr int kNumBlocks = 12;
  BlockPool pool(kNumBlocks);
  std::vector<BlockId> announced;
  pool.set_eviction_listener([&](BlockId id) { announced.push_back(id); });
  std::mt19937 random(7);
  PoolModel model;
  std::vector<BlockRef> refs;
  const auto pick = [&](size_t size) { return static_cast<size_t>(random() % size); };
  int num_evictions = 0;

  for (int operation = 0; operation < 100000; ++operation) {
    switch (pick(6)) {
      case 0:
      case 1: {
        announced.clear();
        std::optional<BlockRef> ref = pool.allocate();
        int num_used = 0;
        for (const auto& [id, count] : model.ref_counts) num_used += count > 0;
        ASSERT_EQ(ref.has_value(), num_used < kNumBlocks);
        if (!ref) break;
        ASSERT_EQ(model.ref_counts[ref->id()], 0);
        const bool must_evict = num_used + static_cast<int>(model.unused.size()) == kNumBlocks;
        ASSERT_EQ(announced.size(), must_evict ? 1u : 0u);
        if (must_evict) {
          ASSERT_EQ(ref->id(), model.unused.front());
          ASSERT_EQ(announced.front(), ref->id());
          model.unused.pop_front();
          model.cached.erase(ref->id());
          ++num_evictions;
        }
        ASSERT_FALSE(model.cached.contains(ref->id()));
        model.ref_counts[ref->id()] = 1;
        ++model.generations[ref->id()];
        refs.push_back(*std::move(ref));
        break;
      }
      case 2: {  // share, a block in use or a cached one
        const BlockId id = 1 + static_cast<BlockId>(pick(kNumBlocks));
        if (model.ref_counts[id] == 0 && !model.cached.contains(id)) break;
        refs.push_back(pool.share(id));
        ++model.ref_counts[id];
        model.drop_unused(id);
        break;
      }
      case 3:
      case 4: {  // release
        if (refs.empty()) break;
        std::swap(refs[pick(refs.size())], refs.back());
        const BlockId id = refs.back().id();
        refs.pop_back();
        if (--model.ref_counts[id] == 0 && model.cached.contains(id)) model.unused.push_back(id);
        break;
      }
      case 5: {  // cache or uncache
        const BlockId id = 1 + static_cast<BlockId>(pick(kNumBlocks));
        const bool cached = pick(3) > 0;
        if (cached && model.ref_counts[id] == 0) break;
        pool.set_cached(id, cached);
        if (cached) {
          model.cached.insert(id);
        } else {
          model.cached.erase(id);
          model.drop_unused(id);
        }
        break;
      }
    }
    pool.check_integrity();
    int num_unused_free = 0;
    for (BlockId id = 1; id <= kNumBlocks; ++id) {
      ASSERT_EQ(pool.ref_count(id), model.ref_counts[id]);
      ASSERT_EQ(pool.generation(id), model.generations[id]);
      ASSERT_EQ(pool.is_cached(id), model.cached.contains(id));
      num_unused_free += model.ref_counts[id] == 0;
    }
    ASSERT_EQ(pool.num_free(), num_unused_free);
    ASSERT_EQ(pool.num_evictable(), static_cast<int>(model.unused.size()));
  }
  EXPECT_GT(num_evictions, 1000);  // the sequence did reach the interesting part
  refs.clear();
  EXPECT_EQ(pool.num_free(), kNumBlocks);
}

}  // namespace
}  // namespace specdec
