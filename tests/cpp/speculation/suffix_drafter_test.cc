#include "speculation/suffix_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::draft_once;
using testing::drafts_of;
using testing::random_tokens;
using testing::request_for;
using Tokens = std::vector<int32_t>;

constexpr int kVocabSize = 1000;

DrafterConfig suffix_config() {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  return config;
}

TEST(SuffixDrafter, LongerMatchesDraftMore) {
  SuffixDrafter drafter(suffix_config(), 2, kVocabSize);
  Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 3};
  EXPECT_EQ(drafts_of(draft_once(drafter, tokens, {.max_depth = 8})), (Tokens{4}));
  tokens.push_back(4);
  EXPECT_EQ(drafts_of(draft_once(drafter, tokens, {.max_depth = 8})), (Tokens{5, 6}));
  tokens.push_back(5);
  const DraftTree tree = draft_once(drafter, tokens, {.max_depth = 8});
  EXPECT_EQ(drafts_of(tree), (Tokens{6, 7, 8}));
  EXPECT_FLOAT_EQ(tree.survival(1), 0.5f);  // 3, 4, 5 occurred twice, then once 6
  EXPECT_EQ(tree.drafter(1), 2);
  EXPECT_EQ(draft_once(drafter, tokens, {.max_depth = 2}).num_drafts(), 2);
}

TEST(SuffixDrafter, SpecFactorScalesTheDraft) {
  DrafterConfig config = suffix_config();
  config.suffix_max_spec_factor = 2.5;
  SuffixDrafter drafter(config, 0, kVocabSize);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 3, 4};
  EXPECT_EQ(draft_once(drafter, tokens, {.max_depth = 16}).num_drafts(), 5);
  config.suffix_max_spec_factor = 0;
  SuffixDrafter never(config, 0, kVocabSize);
  EXPECT_EQ(draft_once(never, tokens, {.max_depth = 16}).num_drafts(), 0);
}

TEST(SuffixDrafter, UnlikelyTokensAreNotDrafted) {
  Tokens tokens;
  for (int32_t i = 10; i < 15; ++i) tokens.insert(tokens.end(), {1, i});
  tokens.push_back(1);
  DrafterConfig config = suffix_config();
  config.suffix_min_token_prob = 0.2;  // each followed once in six occurrences
  SuffixDrafter strict(config, 0, kVocabSize);
  EXPECT_EQ(draft_once(strict, tokens).num_drafts(), 0);
  config.suffix_min_token_prob = 0.15;
  SuffixDrafter lenient(config, 0, kVocabSize);
  EXPECT_EQ(drafts_of(draft_once(lenient, tokens)), (Tokens{14}));
}

TEST(SuffixDrafter, OutputsOfFinishedRequestsAreShared) {
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize);
  const Tokens first = {90, 91, 1, 2, 3, 4, 5};
  draft_once(drafter, first, {}, 1);
  drafter.finish({1, first, 2});
  EXPECT_EQ(drafter.num_shared(), 1);
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{60, 1, 2}, {}, 2)), (Tokens{3, 4}));
  EXPECT_EQ(draft_once(drafter, Tokens{60, 90}, {}, 3).num_drafts(), 0);  // its prompt was not
}

TEST(SuffixDrafter, AcceptanceGrowsWithWhatWasSeen) {
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize);
  std::mt19937 random(7);
  const Tokens answer = random_tokens(random, 60, 500);
  std::vector<int> drafted_right;
  for (uint64_t request = 0; request < 3; ++request) {
    Tokens tokens = {static_cast<int32_t>(1000 + request)};
    int right = 0;
    for (const int32_t token : answer) {
      const DraftTree tree = draft_once(drafter, tokens, {.max_depth = 4}, request);
      right += tree.find_child(DraftTree::kRoot, token) >= 0;
      tokens.push_back(token);
    }
    drafter.finish({request, tokens, 1});
    drafted_right.push_back(right);
  }
  EXPECT_LT(drafted_right[0], 10);
  EXPECT_GE(drafted_right[1], 55);
  EXPECT_GE(drafted_right[2], drafted_right[1]);
}

TEST(SuffixDrafter, ZeroCachedRequestsShareNothing) {
  DrafterConfig config = suffix_config();
  config.suffix_max_cached_requests = 0;
  SuffixDrafter drafter(config, 0, kVocabSize);
  drafter.finish({1, Tokens{1, 2, 3, 4}, 0});
  EXPECT_EQ(drafter.num_shared(), 0);
  EXPECT_EQ(draft_once(drafter, Tokens{9, 1, 2}, {}, 2).num_drafts(), 0);
  EXPECT_GT(draft_once(drafter, Tokens{1, 2, 1}, {}, 3).num_drafts(), 0);
}

TEST(SuffixDrafter, TheOldestSharedOutputGoesFirst) {
  DrafterConfig config = suffix_config();
  config.suffix_max_cached_requests = 2;
  SuffixDrafter drafter(config, 0, kVocabSize);
  for (int32_t i = 0; i < 3; ++i) {
    drafter.finish({static_cast<uint64_t>(i), Tokens{10 * i, 10 * i + 1, 10 * i + 2}, 0});
  }
  EXPECT_EQ(drafter.num_shared(), 2);
  EXPECT_EQ(draft_once(drafter, Tokens{99, 0}, {}, 10).num_drafts(), 0);
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{99, 10}, {}, 11)), (Tokens{11}));
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{99, 20}, {}, 12)), (Tokens{21}));
}

TEST(SuffixDrafter, SharedMemoryIsBounded) {
  constexpr int64_t kLimit = 200 * 1024;
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize, nullptr, kLimit);
  std::mt19937 random(8);
  int most = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    drafter.finish({static_cast<uint64_t>(i), random_tokens(random, 100, 1000), 0});
    most = std::max(most, drafter.num_shared());
    // Free nodes, at most those of the output that went past the limit, are held for reuse.
    ASSERT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  }
  EXPECT_GE(drafter.num_shared(), 3);
  EXPECT_LT(most, 100);
}

TEST(SuffixDrafter, OwnTextWinsTiesAgainstSharedText) {
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize);
  // Both have the pattern twice, followed once.
  drafter.finish({1, Tokens{1, 70, 1}, 0});
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{1, 80, 1}, {}, 2)), (Tokens{80}));
  drafter.finish({3, Tokens{1, 70}, 0});  // now two of three
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{1, 80, 1}, {}, 4)), (Tokens{70}));
}

TEST(SuffixDrafter, StepsWithoutDraftsAreCaughtUpWith) {
  std::mt19937 random(9);
  const Tokens tokens = random_tokens(random, 200, 3);
  SuffixDrafter every(suffix_config(), 0, kVocabSize);
  SuffixDrafter seldom(suffix_config(), 0, kVocabSize);
  for (size_t size = 1; size <= tokens.size(); ++size) {
    const std::span<const int32_t> so_far(tokens.data(), size);
    const Tokens drafts = drafts_of(draft_once(every, so_far));
    if (size % 29 == 0) {
      EXPECT_EQ(drafts_of(draft_once(seldom, so_far)), drafts) << size;
    }
  }
}

TEST(SuffixDrafter, RequestsOnManyThreadsGetTheDraftsTheyGetAlone) {
  constexpr int kRequests = 16;
  std::mt19937 random(10);
  ThreadPool pool(4);
  SuffixDrafter together(suffix_config(), 0, kVocabSize, &pool);
  SuffixDrafter alone(suffix_config(), 0, kVocabSize);
  const Tokens shared = random_tokens(random, 300, 4);
  together.finish({100, shared, 0});
  alone.finish({100, shared, 0});
  std::vector<Tokens> texts;
  for (int r = 0; r < kRequests; ++r) texts.push_back(random_tokens(random, 150, 4));
  int num_drafted = 0;
  for (size_t size = 20; size <= texts[0].size(); ++size) {
    std::vector<DraftTree> trees(kRequests);
    std::vector<DraftRequest> requests(kRequests);
    for (int r = 0; r < kRequests; ++r) {
      const std::span<const int32_t> so_far(texts[r].data(), size);
      trees[r].reset(so_far.back());
      requests[r] = request_for(so_far, trees[r], {.max_depth = 6}, r);
    }
    together.draft(requests);
    for (int r = 0; r < kRequests; ++r) {
      ASSERT_EQ(requests[r].error, nullptr);
      const Tokens drafts = drafts_of(draft_once(alone, requests[r].tokens, {.max_depth = 6}, r));
      ASSERT_EQ(drafts_of(trees[r]), drafts) << r << " of " << size << " tokens";
      num_drafted += trees[r].num_drafts();
    }
  }
  EXPECT_GT(num_drafted, 1000);
}

TEST(SuffixDrafter, FinishForgetsTheSequence) {
  DrafterConfig config = suffix_config();
  config.suffix_max_cached_requests = 0;
  SuffixDrafter drafter(config, 0, kVocabSize);
  const int64_t before = drafter.memory_bytes();
  const Tokens tokens = {1, 2, 1};
  draft_once(drafter, tokens, {}, 1);
  EXPECT_GT(drafter.memory_bytes(), before);
  drafter.finish({1, tokens, 3});
  EXPECT_EQ(drafter.memory_bytes(), before);
}

TEST(SuffixDrafter, TreesBranchByFrequencyWithinTheirLimits) {
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize);
  Tokens tokens;
  for (const int32_t next : {5, 6, 5, 7, 5, 6, 8}) tokens.insert(tokens.end(), {1, 2, next});
  tokens.insert(tokens.end(), {1, 2});
  const DraftTree tree = draft_once(drafter, tokens, {.max_depth = 4, .tree_width = 2});
  EXPECT_EQ(tree.attempts(DraftTree::kRoot).size(), 2u);
  const int first = tree.find_child(DraftTree::kRoot, 5);
  const int second = tree.find_child(DraftTree::kRoot, 6);
  ASSERT_GE(first, 0);
  ASSERT_GE(second, 0);
  EXPECT_FLOAT_EQ(tree.survival(first), 3.0f / 8);
  EXPECT_FLOAT_EQ(tree.survival(second), 2.0f / 8);
  for (int i = 1; i < tree.num_nodes(); ++i) EXPECT_GE(tree.survival(i), 0.1f);
  EXPECT_EQ(draft_once(drafter, tokens, {4, 3, 4}).num_drafts(), 3);
}

}  // namespace
}  // namespace specdec
