// Slices of k: where they lie, what runs of them send, and the tree in which their sums fold.
#include "core/k_slices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "testing/on_ranks.h"

namespace specdec {
namespace {

std::vector<SliceRun> list(std::span<const SliceRun> nodes) { return {nodes.begin(), nodes.end()}; }

std::vector<float> random_sums(std::mt19937& random) {
  std::vector<float> sums(kNumSlices);
  std::normal_distribution<float> normal;
  for (float& sum : sums) sum = std::ldexp(normal(random), static_cast<int>(random() % 12));
  return sums;
}

TEST(KSlices, BoundsAreUnitsSharedOutEvenly) {
  using Bounds = std::array<int64_t, kNumSlices + 1>;
  EXPECT_EQ(KSlices::whole(2048, 64).bounds,
            (Bounds{0, 256, 512, 768, 1024, 1280, 1536, 1792, 2048}));
  // 9 units of 64: the last slice has two.
  EXPECT_EQ(KSlices::whole(576, 64).bounds, (Bounds{0, 64, 128, 192, 256, 320, 384, 448, 576}));
  // 3 units of 192, the last one short: slices 2, 5 and 7 have one unit each.
  EXPECT_EQ(KSlices::whole(500, 192).bounds, (Bounds{0, 0, 0, 192, 192, 192, 384, 384, 500}));
  EXPECT_EQ(KSlices::whole(40, 64).bounds, (Bounds{0, 0, 0, 0, 0, 0, 0, 0, 40}));
}

TEST(KSlices, ARunHasItsOwnBounds) {
  const KSlices whole = KSlices::whole(576, 64);
  const KSlices run = whole.cut({5, 3});
  EXPECT_EQ(run.begin(), 320);
  EXPECT_EQ(run.end(), 576);
  EXPECT_EQ(run.in_features(), 256);
  EXPECT_EQ(run.local_bound(0), 0);
  EXPECT_EQ(run.local_bound(2), 128);
  EXPECT_EQ(run.local_bound(3), 256);
  EXPECT_EQ(run.whole_features(), 576);
}

TEST(KSlices, RanksShareSlicesWithoutGaps) {
  for (int size = 1; size <= kNumSlices; ++size) {
    int first = 0;
    for (int rank = 0; rank < size; ++rank) {
      const SliceRun run = SliceRun::of_rank(rank, size);
      EXPECT_EQ(run.first, first);
      EXPECT_GE(run.count, kNumSlices / size);
      EXPECT_LE(run.count, (kNumSlices + size - 1) / size);
      first = run.end();
    }
    EXPECT_EQ(first, kNumSlices);
  }
}

TEST(KSlices, SubtreesOfARunAreTheLargestOnes) {
  EXPECT_EQ(list(subtrees_of({0, 8}).span()), (std::vector<SliceRun>{{0, 8}}));
  EXPECT_EQ(list(subtrees_of({0, 4}).span()), (std::vector<SliceRun>{{0, 4}}));
  EXPECT_EQ(list(subtrees_of({2, 3}).span()), (std::vector<SliceRun>{{2, 2}, {4, 1}}));
  EXPECT_EQ(list(subtrees_of({1, 6}).span()),
            (std::vector<SliceRun>{{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  EXPECT_EQ(list(subtrees_of({1, 7}).span()), (std::vector<SliceRun>{{1, 1}, {2, 2}, {4, 4}}));
  EXPECT_TRUE(list(subtrees_of({3, 0}).span()).empty());
}

TEST(KSlices, TheSlicesOfEveryRunFoldToItsSubtrees) {
  std::mt19937 random(1);
  for (int first = 0; first < kNumSlices; ++first) {
    for (int count = 1; first + count <= kNumSlices; ++count) {
      const FoldOrder order = fold_order_of(SliceRun{first, count});
      const auto subtrees = subtrees_of({first, count});
      ASSERT_EQ(order.num_left, subtrees.count);
      // Powers of two tell which slices a sum has.
      std::vector<float> bits;
      for (int s = first; s < first + count; ++s) bits.push_back(std::ldexp(1.0f, s));
      fold(order, bits.data());
      for (int i = 0; i < subtrees.count; ++i) {
        float expected = 0.0f;
        for (int s = subtrees.nodes[i].first; s < subtrees.nodes[i].end(); ++s) {
          expected += std::ldexp(1.0f, s);
        }
        EXPECT_EQ(bits[i], expected) << first << " " << count << " " << i;
      }
    }
  }
}

TEST(KSlices, WhateverTheRunsAreTheTotalHasTheBitsOfTheTree) {
  std::mt19937 random(2);
  int num_rotated = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<float> sums = random_sums(random);
    const float expected = testing::sum_of_slices(sums.data());
    // Every way to cut 8 slices into runs.
    for (int cuts = 0; cuts < 1 << (kNumSlices - 1); ++cuts) {
      std::vector<SliceRun> nodes;
      std::vector<float> planes;
      for (int first = 0; first < kNumSlices;) {
        int end = first + 1;
        while (end < kNumSlices && (cuts >> (end - 1) & 1) == 0) ++end;
        std::vector<float> run(sums.begin() + first, sums.begin() + end);
        const FoldOrder order = fold_order_of(SliceRun{first, end - first});
        fold(order, run.data());
        planes.insert(planes.end(), run.begin(), run.begin() + order.num_left);
        for (const SliceRun& node : subtrees_of({first, end - first})) nodes.push_back(node);
        first = end;
      }
      if (nodes.size() > kNumSlices) FAIL();
      const FoldOrder order = fold_order_of(nodes);
      ASSERT_EQ(order.num_left, 1);
      fold(order, planes.data());
      ASSERT_EQ(planes[0], expected) << cuts;
    }
    // The same slices in another order are another sum: the test would see it.
    std::vector<float> rotated(sums.begin() + 1, sums.end());
    rotated.push_back(sums[0]);
    num_rotated += testing::sum_of_slices(rotated.data()) != expected;
  }
  EXPECT_GT(num_rotated, 20);
}

}  // namespace
}  // namespace specdec
