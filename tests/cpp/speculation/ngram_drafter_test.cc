#include "speculation/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "speculation/ngram_index.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::draft_once;
using testing::drafts_of;
using testing::random_tokens;
using testing::request_for;
using Tokens = std::vector<int32_t>;

NgramDrafter drafter_of(int min, int max, int id = 0) {
  DrafterConfig config;
  config.prompt_lookup_min = min;
  config.prompt_lookup_max = max;
  return NgramDrafter(config, id);
}

Tokens chain(int min, int max, const Tokens& tokens, int max_depth) {
  NgramDrafter drafter = drafter_of(min, max);
  const DraftTree tree = draft_once(drafter, tokens, {.max_depth = max_depth});
  EXPECT_TRUE(tree.is_chain());
  return drafts_of(tree);
}

// Ends of all earlier occurrences of the longest repeated n-gram at the end, latest first.
std::vector<int> brute_force_ends(const Tokens& tokens, int min, int max) {
  const int size = static_cast<int>(tokens.size());
  for (int n = std::min(max, size - 1); n >= min; --n) {
    std::vector<int> ends;
    for (int end = size - 1; end >= n; --end) {
      if (std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) ends.push_back(end);
    }
    if (!ends.empty()) return ends;
  }
  return {};
}

TEST(Ngram, NoMatchDraftsNothing) {
  EXPECT_EQ(chain(1, 3, {1, 2, 3, 4, 5}, 4), Tokens{});
  EXPECT_EQ(chain(2, 3, {1, 2, 3, 4, 2}, 4), Tokens{});  // a match, but of one token
}

TEST(Ngram, ShortContextDraftsNothing) {
  EXPECT_EQ(chain(1, 5, {1}, 4), Tokens{});
  EXPECT_EQ(chain(2, 5, {1, 1}, 4), Tokens{});
  EXPECT_EQ(chain(5, 5, {1, 2, 3}, 4), Tokens{});
}

TEST(Ngram, ContinuesWithWhatFollowed) {
  EXPECT_EQ(chain(2, 2, {11, 12, 13, 14, 15, 11, 12}, 3), (Tokens{13, 14, 15}));
  EXPECT_EQ(chain(2, 2, {11, 12, 13, 14, 15, 11, 12}, 1), (Tokens{13}));
}

TEST(Ngram, FallsBackToAShorterNgram) {
  // No four tokens repeat; 2, 3, 4 do.
  EXPECT_EQ(chain(3, 4, {1, 2, 3, 4, 50, 60, 9, 2, 3, 4}, 2), (Tokens{50, 60}));
  EXPECT_EQ(chain(4, 4, {1, 2, 3, 4, 50, 60, 9, 2, 3, 4}, 2), Tokens{});
}

TEST(Ngram, TheLongerNgramWinsOverTheLaterOne) {
  const Tokens tokens = {1, 2, 3, 70, 9, 3, 80, 1, 2, 3};
  EXPECT_EQ(chain(1, 3, tokens, 1), (Tokens{70}));
  EXPECT_EQ(chain(1, 1, tokens, 1), (Tokens{80}));
}

TEST(Ngram, TheRightmostOccurrenceWins) {
  EXPECT_EQ(chain(2, 2, {1, 2, 30, 1, 2, 40, 1, 2, 50, 1, 2}, 1), (Tokens{50}));
}

TEST(Ngram, SingleTokensMatchWithAMinimumOfOne) {
  EXPECT_EQ(chain(1, 4, {8, 5, 6, 7, 5}, 2), (Tokens{6, 7}));
}

TEST(Ngram, RepeatingTextIsDraftedAsRepeating) {
  EXPECT_EQ(chain(1, 3, {4, 4, 4}, 4), (Tokens{4, 4, 4, 4}));
  EXPECT_EQ(chain(1, 3, {9, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
}

TEST(Ngram, ReadsThePromptAndTheOutput) {
  NgramDrafter drafter = drafter_of(2, 3);
  Tokens tokens = {1, 2, 3, 4};
  EXPECT_EQ(draft_once(drafter, tokens).num_drafts(), 0);
  tokens.insert(tokens.end(), {1, 2});
  EXPECT_EQ(drafts_of(draft_once(drafter, tokens, {.max_depth = 2})), (Tokens{3, 4}));
}

TEST(Ngram, StepsWithoutDraftsAreCaughtUpWith) {
  std::mt19937 random(1);
  const Tokens tokens = random_tokens(random, 300, 4);
  NgramDrafter every = drafter_of(1, 4);
  NgramDrafter seldom = drafter_of(1, 4);
  for (size_t size = 1; size <= tokens.size(); ++size) {
    const std::span<const int32_t> so_far(tokens.data(), size);
    const Tokens drafts = drafts_of(draft_once(every, so_far));
    if (size % 37 == 0) {
      EXPECT_EQ(drafts_of(draft_once(seldom, so_far)), drafts) << size;
    }
  }
}

TEST(Ngram, SequencesInABatchDoNotSeeEachOther) {
  NgramDrafter drafter = drafter_of(1, 3, 5);
  const std::vector<Tokens> tokens = {{1, 2, 3, 1}, {7, 8, 9}, {1, 4, 5, 1}};
  std::vector<DraftTree> trees(3);
  std::vector<DraftRequest> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(request_for(tokens[i], trees[i], {.max_depth = 2}, 100 + i));
  }
  drafter.draft(requests);
  EXPECT_EQ(drafts_of(trees[0]), (Tokens{2, 3}));
  EXPECT_EQ(drafts_of(trees[1]), Tokens{});
  EXPECT_EQ(drafts_of(trees[2]), (Tokens{4, 5}));
  EXPECT_EQ(trees[0].drafter(1), 5);
}

TEST(Ngram, FinishForgetsTheSequence) {
  NgramDrafter drafter = drafter_of(1, 3);
  const Tokens tokens = {1, 2, 3, 1};
  const int64_t before = drafter.memory_bytes();
  draft_once(drafter, tokens, {}, 3);
  EXPECT_GT(drafter.memory_bytes(), before);
  drafter.finish({3, tokens, 4});
  drafter.finish({4, tokens, 4});  // never drafted for
  EXPECT_EQ(drafter.memory_bytes(), before);
  EXPECT_EQ(draft_once(drafter, Tokens{9, 1}, {}, 3).num_drafts(), 0);
}

TEST(Ngram, ChainsEqualABruteForceScan) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const int vocab_size = 1 + static_cast<int>(random() % 6);
    const int min = 1 + static_cast<int>(random() % 3);
    const int max = min + static_cast<int>(random() % 4);
    const int max_depth = 1 + static_cast<int>(random() % 6);
    const Tokens tokens = random_tokens(random, 60, vocab_size);
    NgramDrafter drafter = drafter_of(min, max);
    for (size_t size = 1; size <= tokens.size(); size += 1 + random() % 4) {
      const Tokens so_far(tokens.begin(), tokens.begin() + size);
      const std::vector<int> ends = brute_force_ends(so_far, min, max);
      Tokens expected;
      // A growing copy: what follows the end of the text is what was drafted.
      for (Tokens text = so_far; !ends.empty() && static_cast<int>(expected.size()) < max_depth;) {
        expected.push_back(text[ends[0] + expected.size()]);
        text.push_back(expected.back());
      }
      ASSERT_EQ(drafts_of(draft_once(drafter, so_far, {.max_depth = max_depth})), expected);
    }
  }
}

TEST(Ngram, IndexKnowsEveryOccurrence) {
  std::mt19937 random(3);
  const Tokens tokens = random_tokens(random, 500, 3);
  NgramIndex index(2, 4);
  for (size_t size = 1; size <= tokens.size(); ++size) {
    const Tokens so_far(tokens.begin(), tokens.begin() + size);
    std::vector<int> ends;
    for (auto match = index.find_longest(so_far); match; match = index.previous(*match)) {
      ends.push_back(match->end);
    }
    ASSERT_EQ(ends, brute_force_ends(so_far, 2, 4)) << size;
  }
}

// --- trees ---

TEST(NgramTree, DistinctContinuationsShareTheirPrefix) {
  NgramDrafter drafter = drafter_of(1, 1);
  const Tokens tokens = {1, 2, 3, 0, 1, 2, 4, 0, 1, 5, 6, 0, 1};
  const DraftTree tree =
      draft_once(drafter, tokens, {.max_depth = 2, .max_nodes = 8, .tree_width = 2});
  std::set<Tokens> paths;
  for (int i = 1; i < tree.num_nodes(); ++i) paths.insert(tree.path(i));
  EXPECT_EQ(paths, (std::set<Tokens>{{2}, {2, 3}, {2, 4}, {5}, {5, 6}}));
  // Twice as frequent.
  EXPECT_FLOAT_EQ(tree.survival(tree.find_child(DraftTree::kRoot, 2)),
                  2 * tree.survival(tree.find_child(DraftTree::kRoot, 5)));
}

TEST(NgramTree, WidthLimitsChildrenAndNodesLimitTheTree) {
  NgramDrafter drafter = drafter_of(1, 1);
  Tokens tokens;
  for (int32_t i = 10; i < 20; ++i) tokens.insert(tokens.end(), {1, i, i + 20});
  tokens.push_back(1);
  const DraftTree wide = draft_once(drafter, tokens, {3, 64, 4}, 0);
  EXPECT_EQ(wide.attempts(DraftTree::kRoot).size(), 4u);
  EXPECT_GE(wide.find_child(DraftTree::kRoot, 19), 0);  // the latest of equally frequent ones
  EXPECT_LT(wide.find_child(DraftTree::kRoot, 10), 0);
  EXPECT_EQ(draft_once(drafter, tokens, {3, 5, 4}, 0).num_drafts(), 5);
}

TEST(NgramTree, NodesAlreadyInTheTreeCount) {
  NgramDrafter drafter = drafter_of(1, 1);
  const Tokens tokens = {1, 2, 3, 4, 1};
  DraftTree tree;
  DraftRequest request = request_for(tokens, tree, {.max_depth = 3, .max_nodes = 3});
  tree.add(tree.add(DraftTree::kRoot, 2, 0.5f, 9), 7, 0.5f, 9);
  drafter.draft({&request, 1});
  EXPECT_EQ(tree.num_drafts(), 3);
  EXPECT_EQ(tree.path(3), (Tokens{2, 3}));  // found 2, added 3, no room for 4
}

// All paths after the latest occurrences with their frequency; the tree must hold the most likely.
TEST(NgramTree, RandomTreesHoldTheMostFrequentPaths) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const int vocab_size = 2 + static_cast<int>(random() % 5);
    const Tokens tokens = random_tokens(random, 30 + static_cast<int>(random() % 100), vocab_size);
    const int max_depth = 1 + static_cast<int>(random() % 4);
    const int max_nodes = 1 + static_cast<int>(random() % 20);
    NgramDrafter drafter = drafter_of(1, 3);
    const DraftTree tree = draft_once(drafter, tokens, {max_depth, max_nodes, vocab_size});

    std::vector<int> ends = brute_force_ends(tokens, 1, 3);
    if (ends.size() > NgramDrafter::kMaxOccurrences) ends.resize(NgramDrafter::kMaxOccurrences);
    std::map<Tokens, int> counts;
    for (const int end : ends) {
      Tokens text = tokens;
      Tokens path;
      for (int i = 0; i < max_depth; ++i) {
        path.push_back(text[end + i]);
        text.push_back(path.back());
        ++counts[path];
      }
    }
    std::vector<double> expected;  // survivals, wide enough for all children
    const double decay = 0.85;
    for (const auto& [path, count] : counts) {
      expected.push_back(count * std::pow(decay, path.size()) / static_cast<double>(ends.size()));
    }
    std::sort(expected.rbegin(), expected.rend());
    ASSERT_EQ(tree.num_drafts(), std::min<int>(max_nodes, static_cast<int>(expected.size())));
    std::vector<double> actual;
    for (int i = 1; i < tree.num_nodes(); ++i) {
      const Tokens path = tree.path(i);
      ASSERT_TRUE(counts.contains(path));
      ASSERT_NEAR(tree.survival(i),
                  counts[path] * std::pow(decay, path.size()) / static_cast<double>(ends.size()),
                  1e-5);
      actual.push_back(tree.survival(i));
    }
    std::sort(actual.rbegin(), actual.rend());
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-5);
  }
}

}  // namespace
}  // namespace specdec
