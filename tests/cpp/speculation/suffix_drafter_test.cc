#include "speculation/suffix_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/thread_pool.h"
#include "specdec/error.h"
#include "speculation/suffix_tree.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::draft_once;
using testing::drafts_of;
using testing::request_for;
using Tokens = std::vector<int32_t>;

Tokens random_tokens(std::mt19937& random, int size, int vocab_size) {
  Tokens tokens(size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

// The definition: sequences searched from end to end.
class BruteForce {
 public:
  explicit BruteForce(int max_depth) : max_depth_(max_depth) {}

  std::vector<Tokens> sequences;

  // Occurrences of the pattern and where the last one is.
  std::pair<int, std::pair<int, int>> find(const Tokens& pattern) const {
    int count = 0;
    std::pair<int, int> last = {-1, -1};
    for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
      const Tokens& text = sequences[s];
      for (size_t i = 0; i + pattern.size() <= text.size(); ++i) {
        if (!std::equal(pattern.begin(), pattern.end(), text.begin() + i)) continue;
        ++count;
        last = {s, static_cast<int>(i)};
      }
    }
    return {count, last};
  }
  int count(const Tokens& pattern) const { return find(pattern).first; }

  SuffixDraft draft(const Tokens& context, const SuffixDraftLimits& limits, int vocab_size) const {
    SuffixDraft best;
    for (int m = 1; m <= std::min<int>(max_depth_, static_cast<int>(context.size())); ++m) {
      const Tokens pattern(context.end() - m, context.end());
      if (count(pattern) == 0) break;
      SuffixDraft found = continue_pattern(pattern, limits, vocab_size);
      if (found.nodes.empty() || found.score < best.score) continue;
      best = found;
      best.match_length = m;
    }
    return best;
  }

 private:
  struct Candidate {
    double probability;
    int order;
    Tokens pattern;
    int parent;
    int depth;
  };

  SuffixDraft continue_pattern(const Tokens& pattern, const SuffixDraftLimits& limits,
                               int vocab_size) const {
    const int budget = std::min(
        limits.max_depth,
        static_cast<int>(
            std::floor(static_cast<double>(pattern.size()) * limits.max_spec_factor + 1e-6)));
    SuffixDraft draft;
    std::vector<Candidate> open;
    int order = 0;
    Candidate at{1.0, 0, pattern, -1, 0};
    while (static_cast<int>(draft.nodes.size()) < limits.max_nodes) {
      const int parent = static_cast<int>(draft.nodes.size()) - 1;
      if (at.depth < budget && static_cast<int>(at.pattern.size()) < max_depth_) {
        const int total = count(at.pattern);
        std::vector<std::pair<std::pair<int, std::pair<int, int>>, int32_t>> children;
        for (int32_t token = 0; token < vocab_size; ++token) {
          Tokens longer = at.pattern;
          longer.push_back(token);
          const auto found = find(longer);
          if (found.first > 0) children.push_back({found, token});
        }
        std::sort(children.rbegin(), children.rend());
        for (int i = 0; i < std::min<int>(limits.tree_width, static_cast<int>(children.size()));
             ++i) {
          const int c = children[i].first.first;
          const double p = c == total ? at.probability : at.probability * c / total;
          if (p < limits.min_token_prob) continue;
          Tokens longer = at.pattern;
          longer.push_back(children[i].second);
          open.push_back({p, order++, longer, parent, at.depth + 1});
        }
      }
      if (open.empty()) break;
      const auto next =
          std::max_element(open.begin(), open.end(), [](const Candidate& a, const Candidate& b) {
            return a.probability != b.probability ? a.probability < b.probability
                                                  : a.order > b.order;
          });
      at = *next;
      open.erase(next);
      draft.nodes.push_back({at.pattern.back(), at.parent, at.probability});
      draft.score += at.probability;
    }
    return draft;
  }

  int max_depth_;
};

void expect_same(const SuffixDraft& actual, const SuffixDraft& expected, int trial) {
  ASSERT_EQ(actual.match_length, expected.match_length) << trial;
  ASSERT_EQ(actual.score, expected.score) << trial;
  ASSERT_EQ(actual.nodes.size(), expected.nodes.size()) << trial;
  for (size_t i = 0; i < actual.nodes.size(); ++i) {
    ASSERT_EQ(actual.nodes[i].token, expected.nodes[i].token) << trial << " node " << i;
    ASSERT_EQ(actual.nodes[i].parent, expected.nodes[i].parent) << trial << " node " << i;
    ASSERT_EQ(actual.nodes[i].probability, expected.nodes[i].probability) << trial;
  }
}

void append(SuffixTree& tree, const Tokens& tokens) {
  for (const int32_t token : tokens) tree.append(token);
}

TEST(SuffixTree, CountsPatternsAsTheyAreAppended) {
  SuffixTree tree(3);
  append(tree, {1, 2, 1, 2, 3});
  tree.check_integrity();
  EXPECT_EQ(tree.count(Tokens{1}), 2);
  EXPECT_EQ(tree.count(Tokens{1, 2}), 2);
  EXPECT_EQ(tree.count(Tokens{1, 2, 1}), 1);
  EXPECT_EQ(tree.count(Tokens{2, 3}), 1);
  EXPECT_EQ(tree.count(Tokens{3, 1}), 0);
  EXPECT_EQ(tree.count(Tokens{9}), 0);
}

TEST(SuffixTree, PatternsDoNotCrossSequences) {
  SuffixTree tree(4);
  append(tree, {1, 2});
  tree.close_sequence();
  append(tree, {3, 4});
  EXPECT_EQ(tree.count(Tokens{2, 3}), 0);
  EXPECT_EQ(tree.count(Tokens{3, 4}), 1);
}

TEST(SuffixTree, CountsOfRandomTextEqualBruteForce) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int max_depth = 1 + static_cast<int>(random() % 6);
    const int vocab_size = 1 + static_cast<int>(random() % 4);
    SuffixTree tree(max_depth);
    BruteForce naive(max_depth);
    for (int sequence = 0; sequence < 4; ++sequence) {
      naive.sequences.emplace_back();
      for (int i = static_cast<int>(random() % 25); i > 0; --i) {
        const int32_t token = static_cast<int32_t>(random() % vocab_size);
        tree.append(token);
        naive.sequences.back().push_back(token);
        ASSERT_NO_THROW(tree.check_integrity());
      }
      tree.close_sequence();
      ASSERT_NO_THROW(tree.check_integrity());
    }
    std::set<Tokens> patterns;
    for (const Tokens& text : naive.sequences) {
      for (size_t i = 0; i < text.size(); ++i) {
        for (size_t n = 1; n <= static_cast<size_t>(max_depth) && i + n <= text.size(); ++n) {
          patterns.insert(Tokens(text.begin() + i, text.begin() + i + n));
        }
      }
    }
    for (const Tokens& pattern : patterns) ASSERT_EQ(tree.count(pattern), naive.count(pattern));
    for (int i = 0; i < 50; ++i) {
      const Tokens pattern = random_tokens(random, 1 + static_cast<int>(random() % max_depth), 4);
      ASSERT_EQ(tree.count(pattern), naive.count(pattern));
    }
  }
}

TEST(SuffixTree, EvictionUndoesAppending) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const int max_depth = 1 + static_cast<int>(random() % 6);
    const int vocab_size = 1 + static_cast<int>(random() % 4);
    SuffixTree tree(max_depth);
    BruteForce naive(max_depth);
    for (int step = 0; step < 30; ++step) {
      if (tree.num_closed() > 0 && random() % 3 == 0) {
        tree.evict_oldest();
        naive.sequences.erase(naive.sequences.begin());
      } else {
        naive.sequences.push_back(
            random_tokens(random, 1 + static_cast<int>(random() % 20), vocab_size));
        append(tree, naive.sequences.back());
        tree.close_sequence();
      }
      ASSERT_NO_THROW(tree.check_integrity()) << trial << " " << step;
      for (int i = 0; i < 20; ++i) {
        const Tokens pattern =
            random_tokens(random, 1 + static_cast<int>(random() % max_depth), vocab_size);
        ASSERT_EQ(tree.count(pattern), naive.count(pattern));
      }
    }
    const int64_t empty_bytes = SuffixTree(max_depth).used_bytes();
    while (tree.num_closed() > 0) tree.evict_oldest();
    tree.check_integrity();
    ASSERT_LE(tree.used_bytes(), empty_bytes + 64 + 16 * 1024);  // the hash table stays
  }
}

TEST(SuffixTree, EvictionLeavesTheOpenSequenceAlone) {
  std::mt19937 random(3);
  SuffixTree tree(5);
  BruteForce naive(5);
  for (int i = 0; i < 5; ++i) {
    naive.sequences.push_back(random_tokens(random, 20, 2));
    append(tree, naive.sequences.back());
    tree.close_sequence();
  }
  naive.sequences.emplace_back();
  for (int i = 0; i < 60; ++i) {
    const int32_t token = static_cast<int32_t>(random() % 2);
    tree.append(token);
    naive.sequences.back().push_back(token);
    if (i % 10 == 5 && tree.num_closed() > 0) {
      tree.evict_oldest();
      naive.sequences.erase(naive.sequences.begin());
    }
    ASSERT_NO_THROW(tree.check_integrity());
    const SuffixDraftLimits limits{.max_depth = 4, .max_nodes = 16, .tree_width = 1 + i % 3};
    expect_same(tree.draft_open(limits), naive.draft(naive.sequences.back(), limits, 2), i);
  }
}

TEST(SuffixTree, DraftsOfRandomTextEqualBruteForce) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 400; ++trial) {
    const int max_depth = 2 + static_cast<int>(random() % 6);
    const int vocab_size = 2 + static_cast<int>(random() % 4);
    SuffixTree tree(max_depth);
    BruteForce naive(max_depth);
    for (int i = 0; i < 4; ++i) {
      naive.sequences.push_back(random_tokens(random, 15, vocab_size));
      append(tree, naive.sequences.back());
      tree.close_sequence();
    }
    if (random() % 2 == 0) {
      tree.evict_oldest();
      naive.sequences.erase(naive.sequences.begin());
    }
    const double factors[] = {0.0, 0.5, 1.0, 1.7, 4.0};
    const double least[] = {0.0, 0.1, 0.3, 1.0};
    const SuffixDraftLimits limits{.max_depth = 1 + static_cast<int>(random() % 6),
                                   .max_nodes = 1 + static_cast<int>(random() % 20),
                                   .tree_width = 1 + static_cast<int>(random() % 4),
                                   .max_spec_factor = factors[random() % 5],
                                   .min_token_prob = least[random() % 4]};
    const Tokens context = random_tokens(random, static_cast<int>(random() % 12), vocab_size);
    expect_same(tree.draft(context, limits), naive.draft(context, limits, vocab_size), trial);
    if (HasFatalFailure()) return;
  }
}

TEST(SuffixTree, TheOpenSequenceIsItsOwnContext) {
  std::mt19937 random(5);
  SuffixTree tree(6);
  Tokens tokens;
  for (int i = 0; i < 200; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % 3));
    tree.append(tokens.back());
    const SuffixDraftLimits limits{.max_depth = 5, .max_nodes = 12, .tree_width = 1 + i % 2};
    expect_same(tree.draft_open(limits), tree.draft(tokens, limits), i);
    if (HasFatalFailure()) return;
  }
}

TEST(SuffixTree, MemoryGrowsWithTheTextNotWithTheDepth) {
  std::mt19937 random(6);
  const Tokens tokens = random_tokens(random, 4000, 50);
  SuffixTree shallow(8), deep(64);
  append(shallow, tokens);
  append(deep, tokens);
  EXPECT_LT(deep.used_bytes(), shallow.used_bytes() * 3 / 2);
  EXPECT_LT(deep.used_bytes(), static_cast<int64_t>(tokens.size()) * 300);
  EXPECT_GE(deep.memory_bytes(), deep.used_bytes());
}

TEST(SuffixTree, EvictingNothingIsABug) {
  SuffixTree tree(3);
  tree.append(1);
  EXPECT_THROW(tree.evict_oldest(), InternalError);
}

// --- the drafter ---

DrafterConfig suffix_config() {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  return config;
}

TEST(SuffixDrafter, LongerMatchesDraftMore) {
  SuffixDrafter drafter(suffix_config(), 2);
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
  SuffixDrafter drafter(config, 0);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 3, 4};
  EXPECT_EQ(draft_once(drafter, tokens, {.max_depth = 16}).num_drafts(), 5);
  config.suffix_max_spec_factor = 0;
  SuffixDrafter never(config, 0);
  EXPECT_EQ(draft_once(never, tokens, {.max_depth = 16}).num_drafts(), 0);
}

TEST(SuffixDrafter, UnlikelyTokensAreNotDrafted) {
  Tokens tokens;
  for (int32_t i = 10; i < 15; ++i) tokens.insert(tokens.end(), {1, i});
  tokens.push_back(1);
  DrafterConfig config = suffix_config();
  config.suffix_min_token_prob = 0.2;  // each followed once in six occurrences
  SuffixDrafter strict(config, 0);
  EXPECT_EQ(draft_once(strict, tokens).num_drafts(), 0);
  config.suffix_min_token_prob = 0.15;
  SuffixDrafter lenient(config, 0);
  EXPECT_EQ(drafts_of(draft_once(lenient, tokens)), (Tokens{14}));
}

TEST(SuffixDrafter, OutputsOfFinishedRequestsAreShared) {
  SuffixDrafter drafter(suffix_config(), 0);
  const Tokens first = {90, 91, 1, 2, 3, 4, 5};
  draft_once(drafter, first, {}, 1);
  drafter.finish(1, first, 2);
  EXPECT_EQ(drafter.num_shared(), 1);
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{60, 1, 2}, {}, 2)), (Tokens{3, 4}));
  EXPECT_EQ(draft_once(drafter, Tokens{60, 90}, {}, 3).num_drafts(), 0);  // its prompt was not
}

TEST(SuffixDrafter, AcceptanceGrowsWithWhatWasSeen) {
  SuffixDrafter drafter(suffix_config(), 0);
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
    drafter.finish(request, tokens, 1);
    drafted_right.push_back(right);
  }
  EXPECT_LT(drafted_right[0], 10);
  EXPECT_GE(drafted_right[1], 55);
  EXPECT_GE(drafted_right[2], drafted_right[1]);
}

TEST(SuffixDrafter, ZeroCachedRequestsShareNothing) {
  DrafterConfig config = suffix_config();
  config.suffix_max_cached_requests = 0;
  SuffixDrafter drafter(config, 0);
  drafter.finish(1, Tokens{1, 2, 3, 4}, 0);
  EXPECT_EQ(drafter.num_shared(), 0);
  EXPECT_EQ(draft_once(drafter, Tokens{9, 1, 2}, {}, 2).num_drafts(), 0);
  EXPECT_GT(draft_once(drafter, Tokens{1, 2, 1}, {}, 3).num_drafts(), 0);
}

TEST(SuffixDrafter, TheOldestSharedOutputGoesFirst) {
  DrafterConfig config = suffix_config();
  config.suffix_max_cached_requests = 2;
  SuffixDrafter drafter(config, 0);
  for (int32_t i = 0; i < 3; ++i) {
    drafter.finish(i, Tokens{10 * i, 10 * i + 1, 10 * i + 2}, 0);
  }
  EXPECT_EQ(drafter.num_shared(), 2);
  EXPECT_EQ(draft_once(drafter, Tokens{99, 0}, {}, 10).num_drafts(), 0);
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{99, 10}, {}, 11)), (Tokens{11}));
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{99, 20}, {}, 12)), (Tokens{21}));
}

TEST(SuffixDrafter, SharedMemoryIsBounded) {
  constexpr int64_t kLimit = 200 * 1024;
  SuffixDrafter drafter(suffix_config(), 0, nullptr, kLimit);
  std::mt19937 random(8);
  int most = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    drafter.finish(i, random_tokens(random, 100, 1000), 0);
    most = std::max(most, drafter.num_shared());
    // Free nodes, at most those of the output that went past the limit, are held for reuse.
    ASSERT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  }
  EXPECT_GE(drafter.num_shared(), 3);
  EXPECT_LT(most, 100);
}

TEST(SuffixDrafter, OwnTextWinsTiesAgainstSharedText) {
  SuffixDrafter drafter(suffix_config(), 0);
  // Both have the pattern twice, followed once.
  drafter.finish(1, Tokens{1, 70, 1}, 0);
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{1, 80, 1}, {}, 2)), (Tokens{80}));
  drafter.finish(3, Tokens{1, 70}, 0);  // now two of three
  EXPECT_EQ(drafts_of(draft_once(drafter, Tokens{1, 80, 1}, {}, 4)), (Tokens{70}));
}

TEST(SuffixDrafter, StepsWithoutDraftsAreCaughtUpWith) {
  std::mt19937 random(9);
  const Tokens tokens = random_tokens(random, 200, 3);
  SuffixDrafter every(suffix_config(), 0);
  SuffixDrafter seldom(suffix_config(), 0);
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
  SuffixDrafter together(suffix_config(), 0, &pool);
  SuffixDrafter alone(suffix_config(), 0);
  const Tokens shared = random_tokens(random, 300, 4);
  together.finish(100, shared, 0);
  alone.finish(100, shared, 0);
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
  SuffixDrafter drafter(config, 0);
  const int64_t before = drafter.memory_bytes();
  const Tokens tokens = {1, 2, 1};
  draft_once(drafter, tokens, {}, 1);
  EXPECT_GT(drafter.memory_bytes(), before);
  drafter.finish(1, tokens, 3);
  EXPECT_EQ(drafter.memory_bytes(), before);
}

TEST(SuffixDrafter, TreesBranchByFrequencyWithinTheirLimits) {
  SuffixDrafter drafter(suffix_config(), 0);
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
