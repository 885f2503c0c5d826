#include <gtest/gtest.h>

#include "runtime/model_drafter.h"

namespace specdec {
namespace {

constexpr int kBlockSize = 16;

TEST(DraftKvLedger, KnowsWhatWasWrittenUpToTheFirstGap) {
  BlockPool pool(4);
  BlockTable blocks(kBlockSize);
  ASSERT_TRUE(blocks.reserve(pool, 40));
  DraftKvLedger ledger(pool);
  EXPECT_EQ(ledger.num_seen(blocks, 40), 0);
  ledger.set_seen(blocks, 0, 20);
  EXPECT_EQ(ledger.num_seen(blocks, 40), 20);
  EXPECT_EQ(ledger.num_seen(blocks, 7), 7);
  ledger.set_seen(blocks, 20, 33);
  EXPECT_EQ(ledger.num_seen(blocks, 40), 33);
}

TEST(DraftKvLedger, ForgetsABlockThatWasHandedOutAnew) {
  BlockPool pool(2);
  DraftKvLedger ledger(pool);
  BlockTable first(kBlockSize);
  ASSERT_TRUE(first.reserve(pool, 32));
  ledger.set_seen(first, 0, 32);
  first.clear();
  BlockTable second(kBlockSize);
  ASSERT_TRUE(second.reserve(pool, 32));
  EXPECT_EQ(ledger.num_seen(second, 32), 0);
}

TEST(DraftKvLedger, SharedBlocksKeepWhatOneSequenceWrote) {
  BlockPool pool(4);
  DraftKvLedger ledger(pool);
  BlockTable first(kBlockSize);
  ASSERT_TRUE(first.reserve(pool, 32));
  ledger.set_seen(first, 0, 20);
  BlockTable second(kBlockSize);
  second.adopt({pool.share(first.ids()[0])});
  ASSERT_TRUE(second.reserve(pool, 32));
  EXPECT_EQ(ledger.num_seen(second, 32), kBlockSize);
}

}  // namespace
}  // namespace specdec
