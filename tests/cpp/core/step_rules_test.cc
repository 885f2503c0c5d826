// The rules against their definitions, by brute force.
#include "core/step_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace specdec {
namespace {

static_assert(is_greedy(0.0f) && is_greedy(0.9e-5f) && !is_greedy(1e-5f) && !is_greedy(0.7f));

// Levels of `width` nodes each, until the tree is full.
TEST(StepRules, ATreeHasItsLevelsNodesUntilItIsFull) {
  for (int width = 1; width <= 16; ++width) {
    for (int max_nodes = 0; max_nodes <= 64; ++max_nodes) {
      const TreeShape shape = {.width = width, .max_nodes = max_nodes};
      int num_nodes = 0;
      for (int depth = 0; depth <= 64; ++depth) {
        ASSERT_EQ(shape.num_nodes(depth), num_nodes) << width << " " << max_nodes << " " << depth;
        for (int node = 0; node < width && num_nodes < max_nodes; ++node) ++num_nodes;
      }
    }
  }
}

// The deepest draft that may be accepted as a whole, the token after it included.
TEST(StepRules, ADraftLeavesRoomForTheTokenAfterIt) {
  for (int max_num_tokens = 1; max_num_tokens <= 24; ++max_num_tokens) {
    for (int num_tokens = 1; num_tokens <= max_num_tokens; ++num_tokens) {
      for (int max_depth = 0; max_depth <= 24; ++max_depth) {
        int deepest = 0;
        for (int depth = 0; depth <= max_depth; ++depth) {
          if (num_tokens + depth + 1 <= max_num_tokens) deepest = depth;
        }
        ASSERT_EQ(draft_depth_limit(max_depth, num_tokens, max_num_tokens), deepest);
      }
    }
  }
}

// The committed tokens whose KV is there, counted from the tokens a draft model ran.
int num_seen_of(int num_tokens, const std::vector<int>& run, const std::vector<int>& accepted) {
  int num_seen = num_tokens;
  for (int node : accepted) {
    if (std::ranges::find(run, node) == run.end()) break;
    ++num_seen;
  }
  return num_seen;
}

TEST(StepRules, ADraftModelHasSeenAllOfAChainButItsLastDraft) {
  for (int num_drafts = 1; num_drafts <= 12; ++num_drafts) {
    std::vector<int> run;
    for (int node = 1; node < num_drafts; ++node) run.push_back(node);  // each made the next one
    std::vector<int> accepted;
    for (int num_accepted = 0; num_accepted <= num_drafts; ++num_accepted) {
      if (num_accepted > 0) accepted.push_back(num_accepted);
      const int num_seen = num_seen_after(DraftModelKind::kModel, 7, num_drafts, num_accepted,
                                          /*is_tree=*/false);
      EXPECT_EQ(num_seen, num_seen_of(7, run, accepted));
      // One more is committed.
      EXPECT_LE(7 + num_accepted + 1 - num_seen,
                max_unseen_after(DraftModelKind::kModel, num_drafts));
    }
  }
}

// Random trees of which the draft model ran just the nodes that have children.
TEST(StepRules, ADraftModelHasSeenWhatItRanOfATree) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    const int num_drafts = 1 + static_cast<int>(random() % 20);
    std::vector<int> parents = {-1};
    for (int node = 1; node <= num_drafts; ++node) {
      parents.push_back(static_cast<int>(random() % node));
    }
    std::vector<int> accepted;
    for (int node = static_cast<int>(random() % (num_drafts + 1)); node > 0; node = parents[node]) {
      accepted.insert(accepted.begin(), node);
    }
    std::vector<int> run;
    for (int node = 1; node <= num_drafts; ++node) {
      const bool has_child = std::ranges::find(parents, node) != parents.end();
      const bool is_end = !accepted.empty() && node == accepted.back();
      if (has_child && !is_end) run.push_back(node);
    }
    const auto num_accepted = static_cast<int>(accepted.size());
    EXPECT_EQ(num_seen_after(DraftModelKind::kModel, 9, num_drafts, num_accepted, /*is_tree=*/true),
              num_seen_of(9, run, accepted));
  }
}

// A head has seen only what it ran on its target's features: the committed tokens. Its
// state of a draft is none of them.
TEST(StepRules, AHeadRunsAcceptedDraftsAgain) {
  for (const bool is_tree : {false, true}) {
    for (int num_drafts = 1; num_drafts <= 12; ++num_drafts) {
      for (int num_accepted = 0; num_accepted <= num_drafts; ++num_accepted) {
        const int num_seen =
            num_seen_after(DraftModelKind::kDraftHead, 7, num_drafts, num_accepted, is_tree);
        const int num_tokens = 7 + num_accepted + 1;
        const int first = first_unseen(DraftModelKind::kDraftHead, num_tokens, num_seen);
        EXPECT_EQ(first, 7);  // after the root of the step before
        EXPECT_LE(num_tokens - first, max_unseen_after(DraftModelKind::kDraftHead, num_drafts));
      }
    }
  }
}

TEST(StepRules, AHeadHasNoRowForTheFirstToken) {
  EXPECT_EQ(first_unseen(DraftModelKind::kModel, 5, 0), 0);
  EXPECT_EQ(first_unseen(DraftModelKind::kModel, 5, 3), 3);
  EXPECT_EQ(first_unseen(DraftModelKind::kDraftHead, 5, 0), 1);
  EXPECT_EQ(first_unseen(DraftModelKind::kDraftHead, 5, 3), 3);
  EXPECT_EQ(first_unseen(DraftModelKind::kStatelessDraftHead, 5, 0), 4);
  EXPECT_EQ(first_unseen(DraftModelKind::kDraftHead, 1, 0), 1);
  EXPECT_EQ(first_unseen(DraftModelKind::kStatelessDraftHead, 1, 0), 1);
}

TEST(StepRules, AHeadWithoutKvRunsTheLastTokenAlone) {
  for (const DraftModelKind kind :
       {DraftModelKind::kStatelessDraftHead, DraftModelKind::kTargetKvDraftHead}) {
    EXPECT_EQ(first_unseen(kind, 9, num_seen_after(kind, 5, 4, 3, /*is_tree=*/false)), 8);
    EXPECT_EQ(max_unseen_after(kind, 4), 1);
  }
}

TEST(StepRules, NoiseStreamsAreCountedModuloThoseThatAreFree) {
  std::mt19937_64 random(3);
  std::vector<int64_t> positions = {
      0, 1, (int64_t{1} << 28) - 1, int64_t{1} << 28, int64_t{1} << 31, int64_t{1} << 40};
  for (int i = 0; i < 10000; ++i) positions.push_back(static_cast<int64_t>(random() >> 5));
  for (int64_t position : positions) {
    for (int drafter : {0, 1, kMaxDrafters - 1}) {
      const auto use = static_cast<unsigned __int128>(position) * kMaxDrafters + drafter;
      const auto expected = static_cast<uint32_t>(1 + use % (kVerificationStream - 1));
      ASSERT_EQ(draft_noise_stream(position, drafter), expected) << position;
    }
  }
}

TEST(StepRules, NoTwoUniformsOfAStepShareACounter) {
  std::set<uint32_t> counters;
  int count = 0;
  for (int depth = 1; depth <= 64; ++depth) {
    for (int index : {kFinalDraw, coin_of(0), coin_of(1), coin_of(63), kMaxUniformIndex - 1}) {
      counters.insert(uniform_counter(depth, index));
      ++count;
    }
  }
  EXPECT_EQ(counters.size(), static_cast<size_t>(count));
}

TEST(StepRules, UniformsLieBetweenZeroAndOne) {
  EXPECT_GT(uniform_of(0), 0.0);
  EXPECT_LT(uniform_of(~uint64_t{0}), 1.0);
  EXPECT_EQ(uniform_of(uint64_t{1} << 63), 0.5 + 0x1p-53);
}

}  // namespace
}  // namespace specdec
