#include "speculation/draft_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

using Tokens = std::vector<int32_t>;

DraftTree empty_tree() {
  DraftTree tree;
  tree.reset(7);
  return tree;
}

TEST(DraftTree, ResetLeavesTheRootAlone) {
  DraftTree tree = empty_tree();
  tree.add(DraftTree::kRoot, 1, 0.5f, 0);
  tree.add_distribution({1.0f});
  tree.reset(9);
  EXPECT_EQ(tree.num_nodes(), 1);
  EXPECT_EQ(tree.num_drafts(), 0);
  EXPECT_EQ(tree.tokens()[0], 9);
  EXPECT_EQ(tree.parents()[0], -1);
  EXPECT_TRUE(tree.attempts(DraftTree::kRoot).empty());
  EXPECT_EQ(tree.add_distribution({1.0f}), 0);
  EXPECT_TRUE(tree.is_chain());
  tree.check_integrity();
}

TEST(DraftTree, PathsDepthsAndChildrenFollowWhatWasAdded) {
  DraftTree tree = empty_tree();
  const int a = tree.add(DraftTree::kRoot, 1, 0.9f, 0);
  const int b = tree.add(a, 2, 0.8f, 0);
  EXPECT_TRUE(tree.is_chain());
  const int c = tree.add(a, 3, 0.1f, 1);
  EXPECT_FALSE(tree.is_chain());
  EXPECT_EQ(tree.path(DraftTree::kRoot), Tokens{});
  EXPECT_EQ(tree.path(b), (Tokens{1, 2}));
  EXPECT_EQ(tree.path(c), (Tokens{1, 3}));
  EXPECT_EQ(tree.depth(c), 2);
  EXPECT_EQ(tree.drafter(c), 1);
  EXPECT_EQ(tree.find_child(a, 3), c);
  EXPECT_EQ(tree.find_child(DraftTree::kRoot, 3), -1);
  EXPECT_EQ(tree.attempts(a).size(), 2u);
  tree.check_integrity();
}

TEST(DraftTree, AnExistingChildIsFoundAndKeepsTheLargerSurvival) {
  DraftTree tree = empty_tree();
  const int a = tree.add(DraftTree::kRoot, 1, 0.3f, 0);
  EXPECT_EQ(tree.add(DraftTree::kRoot, 1, 0.6f, 1), a);
  EXPECT_FLOAT_EQ(tree.survival(a), 0.6f);
  tree.add(DraftTree::kRoot, 1, 0.1f, 1);
  EXPECT_FLOAT_EQ(tree.survival(a), 0.6f);
  EXPECT_EQ(tree.drafter(a), 0);
  EXPECT_EQ(tree.attempts(DraftTree::kRoot).size(), 1u);
  EXPECT_EQ(tree.num_drafts(), 1);
}

TEST(DraftTree, SurvivalNeverRisesAlongAPath) {
  DraftTree tree = empty_tree();
  const int a = tree.add(DraftTree::kRoot, 1, 0.3f, 0);
  const int b = tree.add(a, 2, 0.9f, 0);
  EXPECT_FLOAT_EQ(tree.survival(b), 0.3f);
  EXPECT_FLOAT_EQ(tree.survival(tree.add(DraftTree::kRoot, 5, 1.5f, 0)), 1.0f);
  EXPECT_THROW(tree.add(a, 3, std::nanf(""), 0), InternalError);
}

TEST(DraftTree, DrawsStayAttemptsEvenOnATokenThatIsThere) {
  DraftTree tree = empty_tree();
  const int q = tree.add_distribution({0.5f, 0.5f});
  const int a = tree.add(DraftTree::kRoot, 1, 0.9f, 0);
  EXPECT_EQ(tree.add_sampled(DraftTree::kRoot, 1, 0.5f, 1, q), a);
  const int b = tree.add_sampled(DraftTree::kRoot, 0, 0.7f, 1, q);
  ASSERT_EQ(tree.attempts(DraftTree::kRoot).size(), 3u);
  EXPECT_EQ(tree.attempts(DraftTree::kRoot)[1].child, a);
  EXPECT_EQ(tree.attempts(DraftTree::kRoot)[1].distribution, q);
  EXPECT_EQ(tree.attempts(DraftTree::kRoot)[2].child, b);
  EXPECT_FLOAT_EQ(tree.survival(b), 0.5f);  // not above the draw before
  EXPECT_FLOAT_EQ(tree.distribution(q)[0], 0.5f);
  tree.check_integrity();
}

TEST(DraftTree, RemembersWhatEachDrafterThinksOfANode) {
  DraftTree tree = empty_tree();
  const int a = tree.add(DraftTree::kRoot, 1, 0.5f, 0);
  const int b = tree.add(a, 2, 0.4f, 0);
  // Another drafter goes on below; what it thinks is not told by the survivals of the first.
  EXPECT_EQ(tree.add(DraftTree::kRoot, 1, 0.8f, 1), a);
  const int c = tree.add(DraftTree::kRoot, 3, 0.1f, 1);
  EXPECT_EQ(tree.add(a, 2, 0.6f, 1), b);
  const int d = tree.add(b, 5, 0.3f, 2, 0.25f);
  EXPECT_EQ(tree.proposals(a).size(), 2u);
  EXPECT_FLOAT_EQ(tree.find_proposal(b, 0)->confidence, 0.8f);
  EXPECT_FLOAT_EQ(tree.find_proposal(b, 1)->confidence, 0.75f);
  EXPECT_FLOAT_EQ(tree.find_proposal(d, 2)->confidence, 0.25f);
  EXPECT_EQ(tree.find_proposal(d, 0), nullptr);
  EXPECT_EQ(tree.drafter(a), 0);
  EXPECT_EQ(tree.drafter(d), 2);
  EXPECT_TRUE(tree.find_proposal(a, 1)->is_first);
  EXPECT_FALSE(tree.find_proposal(c, 1)->is_first);
  EXPECT_TRUE(tree.has_child_of(b, 2));
  EXPECT_FALSE(tree.has_child_of(b, 0));
  EXPECT_TRUE(tree.has_child_of_others(b, 0));
  EXPECT_FALSE(tree.has_child_of_others(b, 2));
  tree.truncate(3);  // without token 3
  tree.check_integrity();
  EXPECT_FLOAT_EQ(tree.find_proposal(3, 2)->confidence, 0.25f);
  tree.reset(4);
  EXPECT_TRUE(tree.proposals(DraftTree::kRoot).empty());
}

TEST(DraftTree, TruncateKeepsTheBestNodesAndRenumbers) {
  DraftTree tree = empty_tree();
  const int a = tree.add(DraftTree::kRoot, 1, 0.5f, 0);
  tree.add(a, 2, 0.2f, 0);
  const int c = tree.add(DraftTree::kRoot, 3, 0.4f, 1);
  const int d = tree.add(c, 4, 0.4f, 1);
  tree.add(d, 5, 0.2f, 1);  // ties with token 2, which came first
  tree.truncate(4);
  tree.check_integrity();
  EXPECT_EQ(Tokens(tree.tokens().begin(), tree.tokens().end()), (Tokens{7, 1, 2, 3, 4}));
  EXPECT_EQ(Tokens(tree.parents().begin(), tree.parents().end()), (Tokens{-1, 0, 1, 0, 3}));
  EXPECT_EQ(tree.drafter(4), 1);
  EXPECT_FLOAT_EQ(tree.survival(4), 0.4f);
  EXPECT_EQ(tree.attempts(3).size(), 1u);
  EXPECT_TRUE(tree.attempts(4).empty());
  tree.truncate(0);
  EXPECT_EQ(tree.num_nodes(), 1);
  tree.check_integrity();
}

// Random trees against the definition: the max_drafts best by survival, then by age.
TEST(DraftTree, TruncatedRandomTreesHoldTheTopNodes) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    DraftTree tree = empty_tree();
    for (int i = 0; i < 20; ++i) {
      const int parent = static_cast<int>(random() % tree.num_nodes());
      tree.add(parent, static_cast<int32_t>(random() % 4), (random() % 8) / 8.0f, 0);
    }
    std::vector<int> nodes(tree.num_drafts());
    for (int i = 0; i < tree.num_drafts(); ++i) nodes[i] = i + 1;
    std::stable_sort(nodes.begin(), nodes.end(),
                     [&](int a, int b) { return tree.survival(a) > tree.survival(b); });
    const int max_drafts = static_cast<int>(random() % (tree.num_drafts() + 2));
    std::multiset<Tokens> expected;
    for (int i = 0; i < std::min(max_drafts, tree.num_drafts()); ++i) {
      expected.insert(tree.path(nodes[i]));
    }
    tree.truncate(max_drafts);
    tree.check_integrity();
    std::multiset<Tokens> actual;
    for (int i = 1; i < tree.num_nodes(); ++i) actual.insert(tree.path(i));
    ASSERT_EQ(actual, expected) << "trial " << trial;
  }
}

TEST(DraftTree, TruncateKeepsAPrefixOfTheDraws) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 300; ++trial) {
    DraftTree tree = empty_tree();
    std::map<int, std::vector<int32_t>> drawn;  // distribution -> tokens in order
    for (int i = 0; i < 12; ++i) {
      const int parent = static_cast<int>(random() % tree.num_nodes());
      const int q = tree.add_distribution({0.25f, 0.25f, 0.25f, 0.25f});
      std::array<int32_t, 4> order = {0, 1, 2, 3};
      std::shuffle(order.begin(), order.end(), random);
      for (unsigned j = 0; j <= random() % 4; ++j) {
        tree.add_sampled(parent, order[j], (random() % 16) / 16.0f, 0, q);
        drawn[q].push_back(order[j]);
      }
    }
    tree.truncate(static_cast<int>(random() % 16));
    tree.check_integrity();
    std::map<int, std::vector<int32_t>> kept;
    for (int i = 0; i < tree.num_nodes(); ++i) {
      for (const auto& attempt : tree.attempts(i)) {
        kept[attempt.distribution].push_back(tree.tokens()[attempt.child]);
      }
    }
    for (const auto& [q, tokens] : kept) {
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), drawn[q].begin()));
    }
  }
}

// Which tries survive must not tell what was drawn: if a draw that ranks too low stayed whenever it
// fell on a token that is kept anyway, tokens proposed twice would come out too often.
TEST(DraftTree, TruncateDecidesWithoutLookingAtDrawnTokens) {
  for (const int max_drafts : {1, 2, 3}) {
    std::set<bool> draw_kept;
    for (const int32_t drawn : {1, 2, 3}) {
      DraftTree tree = empty_tree();
      const int q = tree.add_distribution({0.25f, 0.25f, 0.25f, 0.25f});
      tree.add(DraftTree::kRoot, 1, 0.9f, 0);
      tree.add(DraftTree::kRoot, 2, 0.5f, 0);
      tree.add_sampled(DraftTree::kRoot, drawn, 0.4f, 1, q);
      tree.truncate(max_drafts);
      tree.check_integrity();
      const auto attempts = tree.attempts(DraftTree::kRoot);
      draw_kept.insert(std::any_of(attempts.begin(), attempts.end(),
                                   [](const auto& attempt) { return attempt.distribution >= 0; }));
    }
    EXPECT_EQ(draw_kept.size(), 1u) << max_drafts;
  }
}

}  // namespace
}  // namespace specdec
