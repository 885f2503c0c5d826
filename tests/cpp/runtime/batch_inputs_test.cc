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

TEST(BatchInputs, MasksFollowTheirChain) {
  BlockPool pool(8);
  const BlockTable a = table_for(pool, 32);
  const BlockTable b = table_for(pool, 32);
  BatchInputs inputs(RowFeatures::kOfPreviousToken);
  inputs.add_chain(std::vector<int32_t>{1, 2}, 13, a);
  inputs.add_masks(3, 99, 500);
  inputs.add_chain(std::vector<int32_t>{3}, 4, b);
  inputs.add_masks(0, 99, 500);
  const BatchView view = inputs.view();
  ASSERT_EQ(view.num_rows, 6);
  EXPECT_EQ(std::vector<int32_t>(view.cu_rows, view.cu_rows + 3), (std::vector<int32_t>{0, 5, 6}));
  EXPECT_EQ(view.num_tree_slots[0], 5);
  EXPECT_EQ(view.num_tree_slots[1], 1);
  EXPECT_EQ(std::vector<int32_t>(view.token_ids, view.token_ids + 6),
            (std::vector<int32_t>{1, 2, 99, 99, 99, 3}));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(view.positions[i], 13 + i);
    EXPECT_EQ(view.slot_mapping[i], a.slot(13 + i));
    EXPECT_EQ(view.feature_slots[i], i < 2 ? a.slot(12 + i) : 500);
    EXPECT_EQ(view.state_slots[i], -1);
  }
  EXPECT_EQ(view.slot_mapping[5], b.slot(4));
  EXPECT_EQ(view.is_tree[0], 0);
  EXPECT_THROW(inputs.add_masks(28, 99, 500), InternalError);  // more than its blocks hold
}

// The contents of `view`: of each array the part that the batch fills.
std::vector<int64_t> contents(const BatchView& view) {
  std::vector<int64_t> all = {view.num_requests, view.num_rows, view.ancestor_mask != nullptr};
  for (int row = 0; row < view.num_rows; ++row) {
    all.insert(all.end(), {view.token_ids[row], view.positions[row], view.slot_mapping[row]});
    for (int word = 0; view.ancestor_mask != nullptr && word < view.mask_words; ++word) {
      const auto bits = view.ancestor_mask[static_cast<int64_t>(row) * view.mask_words + word];
      if (bits != 0) all.insert(all.end(), {word, static_cast<int64_t>(bits)});
    }
  }
  for (int i = 0; i < view.num_requests; ++i) {
    all.insert(all.end(),
               {view.cu_rows[i + 1], view.base_lens[i], view.is_tree[i], view.num_tree_slots[i]});
    all.push_back(view.block_tables[i * view.max_blocks_per_request]);
  }
  return all;
}

TEST(BatchInputs, WhatFailsLeavesTheBatchAsItWas) {
  BlockPool pool(16);
  const BlockTable a = table_for(pool, 32);
  const BlockTable b = table_for(pool, 200);
  const std::vector<int32_t> tokens(100, 1);
  std::vector<int32_t> parents(100);
  for (int i = 0; i < 100; ++i) parents[i] = i - 1;
  std::vector<int32_t> no_tree = parents;
  no_tree[99] = 99;  // continues itself
  for (const bool after_a_tree : {false, true}) {
    BatchInputs inputs;
    BatchInputs expected;
    for (BatchInputs* batch : {&inputs, &expected}) {
      if (after_a_tree) batch->add_tree({{1, 2, 3}}, {{-1, 0, 0}}, 5, a);
      batch->add_chain({{4, 5}}, 7, a);
    }
    EXPECT_THROW(inputs.add_tree(tokens, no_tree, 0, b), InternalError);
    EXPECT_THROW(inputs.add_chain(tokens, 0, a), InternalError);
    EXPECT_EQ(contents(inputs.view()), contents(expected.view()));
    for (BatchInputs* batch : {&inputs, &expected}) {
      batch->add_chain({{6}}, 9, b);
      batch->add_tree(tokens, parents, 10, b);
    }
    EXPECT_EQ(contents(inputs.view()), contents(expected.view()));
  }
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
