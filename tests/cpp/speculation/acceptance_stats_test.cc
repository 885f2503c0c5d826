#include "specdec/acceptance_stats.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

using Counts = std::vector<int64_t>;

TEST(AcceptanceStats, NothingRecordedHasNoRates) {
  const AcceptanceStats stats;
  EXPECT_EQ(stats.mean_acceptance_length(), 1);
  EXPECT_EQ(stats.draft_acceptance_rate(), 0);
}

TEST(AcceptanceStats, StepsWithoutDraftsDoNotCount) {
  AcceptanceStats stats;
  stats.record(0, 0, 0);
  EXPECT_EQ(stats.num_steps, 0);
  EXPECT_EQ(stats.num_emitted_tokens, 0);
}

TEST(AcceptanceStats, CountsProposedAndAcceptedByPosition) {
  AcceptanceStats stats;
  stats.record(3, 3, 2);
  stats.record(1, 1, 1);
  stats.record(2, 2, 0);
  EXPECT_EQ(stats.num_steps, 3);
  EXPECT_EQ(stats.num_draft_tokens, 6);
  EXPECT_EQ(stats.num_accepted_tokens, 3);
  EXPECT_EQ(stats.num_emitted_tokens, 6);
  EXPECT_EQ(stats.proposed_per_position, (Counts{3, 2, 1}));
  EXPECT_EQ(stats.accepted_per_position, (Counts{2, 1, 0}));
  EXPECT_EQ(stats.histogram, (Counts{1, 1, 1, 0}));
  EXPECT_DOUBLE_EQ(stats.mean_acceptance_length(), 2.0);
  EXPECT_DOUBLE_EQ(stats.draft_acceptance_rate(), 0.5);
}

TEST(AcceptanceStats, TreesCountNodesAsDraftsAndDepthsAsPositions) {
  AcceptanceStats stats;
  stats.record(7, 2, 2);
  EXPECT_EQ(stats.num_draft_tokens, 7);
  EXPECT_EQ(stats.proposed_per_position, (Counts{1, 1}));
  EXPECT_EQ(stats.histogram, (Counts{0, 0, 1}));
}

TEST(AcceptanceStats, MergingEqualsRecordingTogether) {
  AcceptanceStats together, first, second;
  for (const auto& [drafts, depth, accepted] :
       std::vector<std::array<int, 3>>{{4, 4, 1}, {5, 3, 3}, {1, 1, 0}}) {
    together.record(drafts, depth, accepted);
    (drafts == 4 ? first : second).record(drafts, depth, accepted);
  }
  first.num_predicted_draft_tokens = 4;
  first.num_predicted_accepted_tokens = 1;
  second.num_predicted_draft_tokens = 2;
  second.num_predicted_accepted_tokens = 2;
  first.merge(second);
  EXPECT_EQ(first.num_predicted_draft_tokens, 6);
  EXPECT_EQ(first.num_predicted_accepted_tokens, 3);
  EXPECT_EQ(first.num_steps, together.num_steps);
  EXPECT_EQ(first.num_draft_tokens, together.num_draft_tokens);
  EXPECT_EQ(first.num_accepted_tokens, together.num_accepted_tokens);
  EXPECT_EQ(first.num_emitted_tokens, together.num_emitted_tokens);
  EXPECT_EQ(first.proposed_per_position, together.proposed_per_position);
  EXPECT_EQ(first.accepted_per_position, together.accepted_per_position);
  EXPECT_EQ(first.histogram, together.histogram);
  EXPECT_EQ(std::accumulate(first.histogram.begin(), first.histogram.end(), int64_t{0}),
            first.num_steps);
}

TEST(AcceptanceStats, MoreAcceptedThanDraftedIsABug) {
  AcceptanceStats stats;
  EXPECT_THROW(stats.record(2, 2, 3), InternalError);
  EXPECT_THROW(stats.record(1, 2, 1), InternalError);
}

}  // namespace
}  // namespace specdec
