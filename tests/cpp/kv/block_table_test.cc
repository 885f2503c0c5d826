#include "kv/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kBlockSize = 4;

TEST(BlockTableTest, ReservesOnlyWhatIsMissing) {
  BlockPool pool(8);
  BlockTable table(kBlockSize);
  EXPECT_TRUE(table.reserve(pool, 0));
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_TRUE(table.reserve(pool, 1));
  EXPECT_EQ(table.num_blocks(), 1);
  EXPECT_TRUE(table.reserve(pool, 4));
  EXPECT_EQ(table.num_blocks(), 1);
  EXPECT_TRUE(table.reserve(pool, 9));
  EXPECT_EQ(table.num_blocks(), 3);
  EXPECT_EQ(table.capacity_tokens(), 12);
  EXPECT_TRUE(table.reserve(pool, 2));  // never shrinks
  EXPECT_EQ(table.num_blocks(), 3);
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(BlockTableTest, TakesNothingOnShortage) {
  BlockPool pool(3);
  BlockTable other(kBlockSize);
  ASSERT_TRUE(other.reserve(pool, 4));
  BlockTable table(kBlockSize);
  EXPECT_FALSE(table.reserve(pool, 9));
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(table.reserve(pool, 8));
  EXPECT_FALSE(table.reserve(pool, 9));
  EXPECT_EQ(table.num_blocks(), 2);
  pool.check_integrity();
}

TEST(BlockTableTest, SlotsFollowTheBlocks) {
  BlockPool pool(8);
  BlockTable table(kBlockSize);
  ASSERT_TRUE(table.reserve(pool, 12));
  ASSERT_EQ(table.ids().size(), 3u);
  for (int token = 0; token < 12; ++token) {
    EXPECT_EQ(table.slot(token), table.ids()[token / 4] * 4 + token % 4);
  }
}

TEST(BlockTableTest, TruncateKeepsThePartlyUsedBlock) {
  BlockPool pool(8);
  BlockTable table(kBlockSize);
  ASSERT_TRUE(table.reserve(pool, 16));
  const BlockId first = table.ids()[0];
  table.truncate(16);
  EXPECT_EQ(table.num_blocks(), 4);
  table.truncate(5);
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(table.ids()[0], first);
  EXPECT_EQ(pool.num_free(), 6);
  table.truncate(0);
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_EQ(pool.num_free(), 8);
}

TEST(BlockTableTest, AdoptSharesBlocksAndGrowsBehindThem) {
  BlockPool pool(4);
  BlockTable owner(kBlockSize);
  ASSERT_TRUE(owner.reserve(pool, 8));
  BlockTable table(kBlockSize);
  table.adopt({pool.share(owner.ids()[0]), pool.share(owner.ids()[1])});
  EXPECT_TRUE(std::ranges::equal(table.ids(), owner.ids()));
  EXPECT_EQ(pool.num_free(), 2);
  ASSERT_TRUE(table.reserve(pool, 9));
  EXPECT_EQ(table.num_blocks(), 3);
  EXPECT_THROW(table.adopt({}), InternalError);  // not empty
  owner.clear();
  EXPECT_EQ(pool.num_free(), 1);
  table.clear();
  EXPECT_EQ(pool.num_free(), 4);
  pool.check_integrity();
}

// Allocation order tells the order of eviction, as all blocks are cached and the pool has no other.
std::vector<BlockId> eviction_order(BlockPool& pool) {
  std::vector<BlockRef> refs;
  std::vector<BlockId> order;
  while (std::optional<BlockRef> ref = pool.allocate()) {
    order.push_back(ref->id());
    refs.push_back(*std::move(ref));
  }
  return order;
}

TEST(BlockTableTest, TailIsReleasedFirst) {
  for (const bool destroyed : {false, true}) {
    BlockPool pool(3);
    std::vector<BlockId> ids;
    {
      BlockTable table(kBlockSize);
      ASSERT_TRUE(table.reserve(pool, 12));
      ids.assign(table.ids().begin(), table.ids().end());
      for (const BlockId id : ids) pool.set_cached(id, true);
      if (!destroyed) table.clear();
    }
    std::ranges::reverse(ids);
    EXPECT_EQ(eviction_order(pool), ids);
  }
}

TEST(BlockTableTest, MovingHandsTheBlocksOver) {
  BlockPool pool(4);
  BlockTable first(kBlockSize);
  ASSERT_TRUE(first.reserve(pool, 8));
  BlockTable second(std::move(first));
  EXPECT_EQ(second.num_blocks(), 2);
  BlockTable third(kBlockSize);
  ASSERT_TRUE(third.reserve(pool, 4));
  third = std::move(second);
  EXPECT_EQ(third.num_blocks(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  pool.check_integrity();
}

}  // namespace
}  // namespace specdec
