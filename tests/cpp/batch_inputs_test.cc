#include "runtime/batch_inputs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kBlockSize = 16;

BlockTable table_for(BlockPool& pool, int num_tokens) {
  BlockTable table(kBlockSize);
  EXPECT_TRUE(table.reserve(pool, num_tokens));
  return table;
}

TEST(BatchInputs, ChainRowsContinueTheCommittedTokens) {
  BlockPool pool(8);
  const BlockTable table = table_for(pool, 40);
  BatchInputs inputs;
  EXPECT_EQ(inputs.add_chain(std::vector<int32_t>{7, 8, 9}, 15, table), 0);
  const BatchView view = inputs.view();
  ASSERT_EQ(view.num_rows, 3);
  EXPECT_EQ(view.base_lens[0], 15);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(view.token_ids[i], 7 + i);
    EXPECT_EQ(view.positions[i], 15 + i);
    EXPECT_EQ(view.slot_mapping[i], table.slot(15 + i));
  }
  // The second row starts a new block.
  EXPECT_EQ(view.slot_mapping[1], static_cast<int64_t>(table.ids()[1]) * kBlockSize);
  EXPECT_EQ(view.ancestor_mask, nullptr);
}

TEST(BatchInputs, RequestsArePackedWithOneTableRowEach) {
  BlockPool pool(8);
  const BlockTable a = table_for(pool, 16);
  const BlockTable b = table_for(pool, 48);
  BatchInputs inputs;
  inputs.add_chain(std::vector<int32_t>{1}, 3, a);
  EXPECT_EQ(inputs.add_chain(std::vector<int32_t>{2, 3}, 40, b), 1);
  const BatchView view = inputs.view();
  EXPECT_EQ(view.num_requests, 2);
  EXPECT_EQ(std::vector<int32_t>(view.cu_rows, view.cu_rows + 3), (std::vector<int32_t>{0, 1, 3}));
  ASSERT_EQ(view.max_blocks_per_request, 3);
  EXPECT_EQ(view.block_tables[0], a.ids()[0]);
  EXPECT_EQ(view.block_tables[1], kNullBlock);
  EXPECT_EQ(view.block_tables[3], b.ids()[0]);
  EXPECT_EQ(view.block_tables[5], b.ids()[2]);
}

// Walks parents instead of copying masks.
bool is_ancestor_or_self(const std::vector<int32_t>& parents, int ancestor, int node) {
  for (; node >= 0; node = parents[node]) {
    if (node == ancestor) return true;
  }
  return false;
}

TEST(BatchInputs, TreeMasksNameAncestorsAndPositionsFollowDepth) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    BlockPool pool(32);
    const int num_nodes = 1 + static_cast<int>(random() % 130);
    std::vector<int32_t> parents{-1};
    for (int i = 1; i < num_nodes; ++i) parents.push_back(static_cast<int32_t>(random() % i));
    const std::vector<int32_t> tokens(num_nodes, 5);
    const BlockTable chain_table = table_for(pool, 32);
    const BlockTable tree_table = table_for(pool, 20 + num_nodes);
    BatchInputs inputs;
    inputs.add_chain(std::vector<int32_t>{1, 2}, 0, chain_table);
    const int first = inputs.add_tree(tokens, parents, 20, tree_table);
    inputs.add_chain(std::vector<int32_t>{3}, 9, chain_table);
    const BatchView view = inputs.view();
    ASSERT_EQ(view.mask_words, (num_nodes + 63) / 64);
    for (int node = 0; node < num_nodes; ++node) {
      int depth = 0;
      for (int other = 0; other < num_nodes; ++other) {
        const uint64_t word = view.ancestor_mask[(first + node) * view.mask_words + other / 64];
        const bool bit = (word >> (other % 64)) & 1;
        ASSERT_EQ(bit, is_ancestor_or_self(parents, other, node)) << node << ' ' << other;
        depth += bit;
      }
      ASSERT_EQ(view.positions[first + node], 20 + depth - 1);
      ASSERT_EQ(view.slot_mapping[first + node], tree_table.slot(20 + node));
    }
  }
}

TEST(BatchInputs, ARowBeyondTheReservedBlocksIsRefused) {
  BlockPool pool(2);
  const BlockTable table = table_for(pool, 16);
  BatchInputs inputs;
  EXPECT_THROW(inputs.add_chain(std::vector<int32_t>{1, 2}, 15, table), InternalError);
}

}  // namespace
}  // namespace specdec
