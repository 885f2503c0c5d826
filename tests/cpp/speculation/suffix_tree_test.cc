#include "speculation/suffix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "specdec/error.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::random_tokens;
using Tokens = std::vector<int32_t>;

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
      if (tree.num_texts() > 0 && random() % 3 == 0) {
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
    while (tree.num_texts() > 0) tree.evict_oldest();
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
    if (i % 10 == 5 && tree.num_texts() > 0) {
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

}  // namespace
}  // namespace specdec
