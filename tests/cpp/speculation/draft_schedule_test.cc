#include "speculation/draft_schedule.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace specdec {
namespace {

DraftSchedule schedule(std::vector<BatchSizeRange> ranges, int num_speculative_tokens = 5) {
  SpeculativeConfig config;
  config.num_speculative_tokens = num_speculative_tokens;
  config.num_speculative_tokens_per_batch_size = std::move(ranges);
  return DraftSchedule(config);
}

TEST(DraftSchedule, WithoutTableTheNumberIsConstant) {
  const DraftSchedule table = schedule({}, 7);
  for (int requests : {0, 1, 100, 100000}) EXPECT_EQ(table.num_speculative_tokens(requests), 7);
}

TEST(DraftSchedule, RangesIncludeBothEnds) {
  const DraftSchedule table = schedule({{1, 4, 5}, {5, 8, 3}, {9, 9, 0}});
  const std::vector<int> expected = {5, 5, 5, 5, 3, 3, 3, 3, 0};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(table.num_speculative_tokens(i + 1), expected[i]) << i + 1;
}

TEST(DraftSchedule, GapsAndTailCarryTheEntryBefore) {
  const DraftSchedule table = schedule({{1, 2, 4}, {6, 7, 1}});
  EXPECT_EQ(table.num_speculative_tokens(3), 4);
  EXPECT_EQ(table.num_speculative_tokens(5), 4);
  EXPECT_EQ(table.num_speculative_tokens(6), 1);
  EXPECT_EQ(table.num_speculative_tokens(8), 1);
  EXPECT_EQ(table.num_speculative_tokens(1000000), 1);
}

TEST(DraftSchedule, OrderDoesNotMatter) {
  const DraftSchedule table = schedule({{9, 16, 1}, {1, 4, 5}, {5, 8, 3}});
  EXPECT_EQ(table.num_speculative_tokens(4), 5);
  EXPECT_EQ(table.num_speculative_tokens(8), 3);
  EXPECT_EQ(table.num_speculative_tokens(9), 1);
}

TEST(DraftSchedule, CountsAreClampedToTheLargest) {
  const DraftSchedule table = schedule({{1, 4, 9}, {5, 8, 2}}, 3);
  EXPECT_EQ(table.num_speculative_tokens(1), 3);
  EXPECT_EQ(table.num_speculative_tokens(5), 2);
}

TEST(DraftSchedule, LookupBelowOneUsesTheFirstEntry) {
  const DraftSchedule table = schedule({{1, 4, 2}, {5, 8, 1}});
  EXPECT_EQ(table.num_speculative_tokens(0), 2);
}

}  // namespace
}  // namespace specdec
