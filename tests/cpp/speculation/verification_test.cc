// Which drafts are kept, case by case and against plain loops on random trees.
#include "speculation/verification.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "specdec/error.h"
#include "testing/text.h"
#include "testing/toy_language.h"

namespace specdec {
namespace {

using testing::Path;
using testing::ToyLanguage;
using Tokens = std::vector<int32_t>;

DraftTree chain_of(const Tokens& tokens) {
  DraftTree tree;
  tree.reset(0);
  int node = DraftTree::kRoot;
  for (const int32_t token : tokens) node = tree.add(node, token, 1.0f, 0);
  return tree;
}

std::vector<float> one_hot(int token, int vocab_size = 8) {
  std::vector<float> distribution(vocab_size, 0.0f);
  distribution[token] = 1.0f;
  return distribution;
}

// The distributions of a tree's nodes, as a source.
class Targets {
 public:
  void add(std::vector<float> distribution) { rows_.push_back(std::move(distribution)); }
  TargetSource source() const {
    return [this](int node) { return std::span<const float>(rows_.at(node)); };
  }

 private:
  std::vector<std::vector<float>> rows_;
};

Targets greedy_targets(const Tokens& argmax) {
  Targets targets;
  for (const int32_t token : argmax) targets.add(one_hot(token));
  return targets;
}

UniformSource constant(double value) {
  return [value](int, int) { return value; };
}

UniformSource random_uniforms(std::mt19937_64& random) {
  return step_uniforms(random(), static_cast<int64_t>(random() % 100000));
}

// ---- Exact ----

TEST(AcceptExact, APerfectMatchEmitsTheDraftsAndOneMore) {
  const auto accepted = accept_exact(chain_of({4, 5, 6}), Tokens{4, 5, 6, 7});
  EXPECT_EQ(accepted.tokens, (Tokens{4, 5, 6, 7}));
  EXPECT_EQ(accepted.nodes, (std::vector<int>{1, 2, 3}));
}

TEST(AcceptExact, TheFirstMismatchEndsIt) {
  const DraftTree tree = chain_of({4, 5, 6});
  EXPECT_EQ(accept_exact(tree, Tokens{1, 5, 6, 7}).tokens, (Tokens{1}));
  EXPECT_EQ(accept_exact(tree, Tokens{4, 1, 6, 7}).tokens, (Tokens{4, 1}));
  EXPECT_EQ(accept_exact(tree, Tokens{4, 1, 2, 7}).tokens, (Tokens{4, 1}));
  EXPECT_EQ(accept_exact(tree, Tokens{4, 5, 1, 7}).tokens, (Tokens{4, 5, 1}));
}

TEST(AcceptExact, WithoutDraftsItEmitsWhatWasSampled) {
  const auto accepted = accept_exact(chain_of({}), Tokens{3});
  EXPECT_EQ(accepted.tokens, (Tokens{3}));
  EXPECT_TRUE(accepted.nodes.empty());
}

TEST(AcceptExact, EqualsBruteForceOnRandomTrees) {
  std::mt19937_64 random(1);
  int64_t num_accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    const int vocab_size = 2 + static_cast<int>(random() % 4);
    DraftTree tree;
    tree.reset(0);
    std::vector<Path> paths = {{}};
    for (int i = static_cast<int>(random() % 30); i > 0; --i) {
      const int parent = static_cast<int>(random() % tree.num_nodes());
      const auto token = static_cast<int32_t>(random() % vocab_size);
      if (tree.add(parent, token, 1.0f, 0) < static_cast<int>(paths.size())) continue;
      paths.push_back(paths[parent]);
      paths.back().push_back(token);
    }
    Tokens sampled;
    for (int i = 0; i < tree.num_nodes(); ++i) {
      sampled.push_back(static_cast<int32_t>(random() % vocab_size));
    }
    // Plain decoding, knowing the token after every path that is in the tree.
    Path emitted;
    std::vector<int> nodes;
    for (;;) {
      const auto node = std::find(paths.begin(), paths.end(), emitted) - paths.begin();
      if (node == static_cast<int64_t>(paths.size())) break;
      if (node > 0) nodes.push_back(static_cast<int>(node));
      emitted.push_back(sampled[node]);
    }
    const auto accepted = accept_exact(tree, sampled);
    ASSERT_EQ(accepted.tokens, emitted);
    ASSERT_EQ(accepted.nodes, nodes);
    num_accepted += static_cast<int64_t>(nodes.size());
  }
  EXPECT_GT(num_accepted, 5000);
}

// ---- Greedy targets: whatever the coins and the drafts' distributions ----

using Rule = Accepted (*)(const DraftTree&, const TargetSource&, const UniformSource&);

class GreedyRows : public ::testing::TestWithParam<Rule> {
 protected:
  static Tokens verify(const DraftTree& tree, const Tokens& argmax) {
    const Targets targets = greedy_targets(argmax);
    Tokens first;
    for (const double coin : {0.5, 0x1p-53, 1.0 - 0x1p-53, 0.01, 0.99}) {
      const Tokens tokens = GetParam()(tree, targets.source(), constant(coin)).tokens;
      if (first.empty()) first = tokens;
      EXPECT_EQ(tokens, first);
    }
    return first;
  }
};

TEST_P(GreedyRows, AcceptTheMatchingPrefixOfDeterministicDrafts) {
  const DraftTree tree = chain_of({4, 5, 6});
  EXPECT_EQ(verify(tree, {4, 5, 6, 7}), (Tokens{4, 5, 6, 7}));
  EXPECT_EQ(verify(tree, {1, 5, 6, 7}), (Tokens{1}));
  EXPECT_EQ(verify(tree, {4, 1, 6, 7}), (Tokens{4, 1}));
  EXPECT_EQ(verify(tree, {4, 1, 2, 7}), (Tokens{4, 1}));
  EXPECT_EQ(verify(tree, {4, 5, 1, 7}), (Tokens{4, 5, 1}));
  EXPECT_EQ(verify(chain_of({}), {3}), (Tokens{3}));
}

TEST_P(GreedyRows, AcceptTheMatchingPrefixOfSampledDrafts) {
  ToyLanguage draft(8, 3);
  for (int32_t first = 0; first < 8; ++first) {
    for (int32_t second = 0; second < 8; ++second) {
      DraftTree tree;
      tree.reset(0);
      const int node = tree.add_sampled(0, first, 1.0f, 0, tree.add_distribution(draft.next({})));
      tree.add_sampled(node, second, 1.0f, 0, tree.add_distribution(draft.next({first})));
      Tokens expected = {3};
      if (first == 3) expected.push_back(6);
      if (first == 3 && second == 6) expected.push_back(1);
      EXPECT_EQ(verify(tree, {3, 6, 1}), expected);
    }
  }
}

TEST_P(GreedyRows, NeverAcceptATokenOutsideTheVocabulary) {
  EXPECT_EQ(verify(chain_of({-1, 5}), {4, 5, 6}), (Tokens{4}));
  EXPECT_EQ(verify(chain_of({4, -1, 6}), {4, 5, 6, 7}), (Tokens{4, 5}));
  EXPECT_EQ(verify(chain_of({4, 8}), {4, 5, 6}), (Tokens{4, 5}));
}

INSTANTIATE_TEST_SUITE_P(Rules, GreedyRows, ::testing::Values(accept_rejection, accept_block),
                         [](const auto& info) { return info.index == 0 ? "Rejection" : "Block"; });

TEST(AcceptRejection, GreedyRowsFindTheirPathInATree) {
  DraftTree tree;
  tree.reset(0);
  const int a = tree.add(0, 1, 1.0f, 0), b = tree.add(0, 2, 1.0f, 0);
  tree.add(a, 3, 1.0f, 0);
  const int d = tree.add(b, 4, 1.0f, 0);
  const Targets targets = greedy_targets({2, 3, 4, 0, 5});
  const auto accepted = accept_rejection(tree, targets.source(), constant(0.7));
  EXPECT_EQ(accepted.nodes, (std::vector<int>{b, d}));
  EXPECT_EQ(accepted.tokens, (Tokens{2, 4, 5}));
}

// ---- Random trees and chains ----

struct RandomDraft {
  DraftTree tree;
  Targets targets;
};

// Attempts of all kinds; probabilities of 0 in both distributions.
RandomDraft random_draft(std::mt19937_64& random, bool is_chain) {
  RandomDraft result;
  DraftTree& tree = result.tree;
  tree.reset(0);
  const int vocab_size = 2 + static_cast<int>(random() % 8);
  ToyLanguage target(vocab_size, static_cast<uint32_t>(random()), 2.0, 0.3);
  ToyLanguage draft(vocab_size, static_cast<uint32_t>(random()), 2.0, 0.3);
  const int max_depth = static_cast<int>(random() % 4);
  for (int node = 0; node < tree.num_nodes(); ++node) {
    const Path path = tree.path(node);
    result.targets.add(random() % 8 == 0 ? draft.next(path) : target.next(path));
    if (tree.depth(node) == max_depth) continue;
    for (uint64_t set = is_chain ? 1 : 1 + random() % 3; set > 0; --set) {
      if (random() % 3 == 0) {
        tree.add(node, static_cast<int32_t>(random() % vocab_size), 1.0f, 0);
        continue;
      }
      const int distribution = tree.add_distribution(draft.next(path));
      const auto noise = testing::gumbel_noise(vocab_size, random);
      const int count = is_chain ? 1 : 1 + static_cast<int>(random() % 3);
      for (const int32_t token : testing::draw_distinct(draft.next(path), count, noise)) {
        tree.add_sampled(node, token, 1.0f, 0, distribution);
      }
    }
  }
  return result;
}

template <class Rule, class Plain>
void expect_equal_on_random_drafts(uint64_t seed, bool are_chains, const Rule& rule,
                                   const Plain& plain) {
  std::mt19937_64 random(seed);
  int64_t num_accepted = 0, num_refused = 0;
  for (int round = 0; round < 10000; ++round) {
    const RandomDraft draft = random_draft(random, are_chains);
    const UniformSource uniform = random_uniforms(random);
    const Accepted accepted = rule(draft.tree, draft.targets.source(), uniform);
    const Accepted expected = plain(draft.tree, draft.targets.source(), uniform);
    ASSERT_EQ(accepted.tokens, expected.tokens);
    ASSERT_EQ(accepted.nodes, expected.nodes);
    num_accepted += static_cast<int64_t>(accepted.nodes.size());
    const int last = accepted.nodes.empty() ? 0 : accepted.nodes.back();
    num_refused += static_cast<int64_t>(draft.tree.attempts(last).size());
  }
  EXPECT_GT(num_accepted, 2000);
  EXPECT_GT(num_refused, 2000);
}

TEST(AcceptRejection, EqualsPlainLoopsOnRandomTrees) {
  expect_equal_on_random_drafts(2, false, accept_rejection, [](const auto&... draft) {
    return testing::plain_rejection(draft...);
  });
}

TEST(AcceptBlock, EqualsPlainLoopsOnRandomChains) {
  expect_equal_on_random_drafts(
      3, true, accept_block, [](const auto&... draft) { return testing::plain_block(draft...); });
}

// The path of nodes is one, its tokens are emitted, and the target could have said all of it.
void expect_sound(const RandomDraft& draft, const Accepted& accepted) {
  ASSERT_EQ(accepted.tokens.size(), accepted.nodes.size() + 1);
  int node = DraftTree::kRoot;
  for (size_t i = 0; i < accepted.tokens.size(); ++i) {
    ASSERT_GT(draft.targets.source()(node)[accepted.tokens[i]], 0.0f);
    if (i == accepted.nodes.size()) break;
    ASSERT_EQ(draft.tree.parents()[accepted.nodes[i]], node);
    node = accepted.nodes[i];
    ASSERT_EQ(draft.tree.tokens()[node], accepted.tokens[i]);
  }
}

TEST(Verification, EmitsOnlyWhatTheTargetCanSayWhateverTheCoins) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 4000; ++round) {
    for (const double coin : {0x1p-53, 1.0 - 0x1p-53}) {
      const RandomDraft tree = random_draft(random, false), chain = random_draft(random, true);
      expect_sound(tree, accept_rejection(tree.tree, tree.targets.source(), constant(coin)));
      expect_sound(chain, accept_rejection(chain.tree, chain.targets.source(), constant(coin)));
      expect_sound(chain, accept_block(chain.tree, chain.targets.source(), constant(coin)));
    }
  }
}

TEST(Verification, ADraftFromTheTargetItselfIsAcceptedWhole) {
  std::mt19937_64 random(5);
  ToyLanguage language(9, 5);
  for (int round = 0; round < 1000; ++round) {
    DraftTree tree;
    tree.reset(0);
    Targets targets;
    targets.add(language.next({}));
    for (int node = 0; node < 5; ++node) {
      const auto& next = language.next(tree.path(node));
      const auto noise = testing::gumbel_noise(9, random);
      tree.add_sampled(node, testing::draw_distinct(next, 1, noise)[0], 1.0f, 0,
                       tree.add_distribution(next));
      targets.add(language.next(tree.path(node + 1)));
    }
    const UniformSource uniform = random_uniforms(random);
    EXPECT_EQ(accept_rejection(tree, targets.source(), uniform).nodes.size(), 5u);
    EXPECT_EQ(accept_block(tree, targets.source(), uniform).nodes.size(), 5u);
  }
}

TEST(Verification, BadProbabilitiesNeverLeaveTheVocabulary) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {nan, nan, nan}, {0.0f, 0.0f, 0.0f}, {nan, 1.0f, 0.0f}, {0.0f, 1e-38f, 0.0f}, {1, 1, 1}};
  for (const auto& target : rows) {
    for (const auto& draft : rows) {
      for (const double coin : {0x1p-53, 0.5, 1.0 - 0x1p-53}) {
        DraftTree tree;
        tree.reset(0);
        const int distribution = tree.add_distribution(draft);
        tree.add_sampled(0, 1, 1.0f, 0, distribution);
        Targets targets;
        targets.add(target);
        targets.add(target);
        for (const Rule rule : {accept_rejection, accept_block}) {
          for (const int32_t token : rule(tree, targets.source(), constant(coin)).tokens) {
            EXPECT_TRUE(token >= 0 && token < 3);
          }
        }
        tree.add_sampled(0, 2, 1.0f, 0, distribution);
        targets.add(target);
        accept_rejection(tree, targets.source(), constant(coin));
      }
    }
  }
}

TEST(Verification, DistributionsMayDifferInPadding) {
  Targets targets;
  targets.add({0.5f, 0.5f});
  targets.add({0.5f, 0.5f});
  for (const int32_t token : {1, 3}) {
    DraftTree tree;
    tree.reset(0);
    tree.add_sampled(0, token, 1.0f, 0, tree.add_distribution({0.1f, 0.5f, 0.2f, 0.2f}));
    for (const Rule rule : {accept_rejection, accept_block}) {
      const auto accepted = rule(tree, targets.source(), constant(0.9));
      EXPECT_EQ(accepted.nodes.size(), token == 1 ? 1u : 0u);
      if (token == 3) {
        EXPECT_EQ(accepted.tokens, (Tokens{0}));
      }
    }
  }
}

TEST(AcceptBlock, RefusesWhatIsNotOneProposalAToken) {
  ToyLanguage draft(4, 6);
  Targets targets;
  for (int i = 0; i < 3; ++i) targets.add(draft.next({}));
  DraftTree two_children;
  two_children.reset(0);
  two_children.add(0, 1, 1.0f, 0);
  two_children.add(0, 2, 1.0f, 0);
  EXPECT_THROW(accept_block(two_children, targets.source(), constant(0.5)), InternalError);
  DraftTree two_tries = chain_of({1});
  two_tries.add_sampled(0, 1, 1.0f, 0, two_tries.add_distribution(draft.next({})));
  EXPECT_THROW(accept_block(two_tries, targets.source(), constant(0.5)), InternalError);
}

// ---- Synthetic ----

TEST(AcceptSynthetic, AcceptsAtTheRatesWhateverTheTokens) {
  const DraftTree tree = chain_of({4, 5, 6, 7});
  const Tokens sampled = {10, 11, 12, 13, 14};
  const std::vector<double> rates = {0.9, 0.6, 0.3};  // none for the fourth: never accepted
  constexpr int kNumTrials = 40000;
  std::vector<int> counts(5);
  for (int i = 0; i < kNumTrials; ++i) {
    const auto accepted = accept_synthetic(tree, rates, sampled, step_uniforms(7, i));
    const size_t length = accepted.nodes.size();
    ++counts[length];
    Tokens expected = {4, 5, 6, 7};
    expected.resize(length);
    expected.push_back(sampled[length]);
    ASSERT_EQ(accepted.tokens, expected);
  }
  const std::vector<double> probs = {0.1, 0.9 * 0.4, 0.9 * 0.6 * 0.7, 0.9 * 0.6 * 0.3, 0.0};
  for (size_t i = 0; i < probs.size(); ++i) {
    const double expected = probs[i] * kNumTrials;
    EXPECT_NEAR(counts[i], expected, 5 * std::sqrt(expected)) << i;
  }
}

TEST(AcceptSynthetic, AllOrNothing) {
  DraftTree tree = chain_of({4, 5});
  tree.add(0, 6, 1.0f, 0);
  const Tokens sampled = {1, 2, 3, 9};
  const auto all = accept_synthetic(tree, std::vector{1.0, 1.0}, sampled, constant(0.999));
  EXPECT_EQ(all.tokens, (Tokens{4, 5, 3}));
  const auto none = accept_synthetic(tree, std::vector{0.0, 1.0}, sampled, constant(0x1p-53));
  EXPECT_EQ(none.tokens, (Tokens{1}));
}

// ---- Uniforms and streams ----

TEST(StepUniforms, AreUniformAndNeverTheSame) {
  std::set<double> seen;
  double sum = 0.0;
  constexpr int kNumEach = 20;
  for (uint64_t seed = 0; seed < kNumEach; ++seed) {
    for (int64_t position = 0; position < kNumEach; ++position) {
      const UniformSource uniform = step_uniforms(seed, position << (position % 3 * 16));
      for (int depth = 1; depth <= kNumEach; ++depth) {
        for (int index = 0; index < kNumEach; ++index) {
          const double u = uniform(depth, index);
          ASSERT_EQ(u, uniform(depth, index));
          ASSERT_TRUE(u > 0.0 && u < 1.0);
          seen.insert(u);
          sum += u;
        }
      }
    }
  }
  const double count = kNumEach * kNumEach * kNumEach * kNumEach;
  EXPECT_EQ(static_cast<double>(seen.size()), count);
  EXPECT_NEAR(sum / count, 0.5, 5 / std::sqrt(12 * count));
}

TEST(DraftNoiseStream, DiffersByStepAndDrafterAndIsNeverThatOfPlainDecoding) {
  std::set<uint32_t> seen;
  for (int64_t position = 0; position < 5000; ++position) {
    for (int drafter = 0; drafter < 16; ++drafter)
      seen.insert(draft_noise_stream(position, drafter));
  }
  EXPECT_EQ(seen.size(), 5000u * 16);
  EXPECT_EQ(seen.count(0), 0u);
  EXPECT_NE(draft_noise_stream(int64_t{1} << 40, 3), 0u);
}

}  // namespace
}  // namespace specdec
