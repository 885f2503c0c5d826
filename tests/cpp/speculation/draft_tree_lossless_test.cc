// Cutting a tree of drawn tokens must leave the distribution of what rejection verification emits
// as it is. Two tokens of a small model are emitted over and over; their joint frequencies are
// compared with the model's probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "speculation/draft_tree.h"
#include "speculation/verification.h"
#include "testing/chi_square.h"

namespace specdec {
namespace {

constexpr int kVocabSize = 4;
constexpr int kNumOutcomes = kVocabSize * kVocabSize;
constexpr int kTrials = 30000;

using Distribution = std::vector<float>;

Distribution random_distribution(std::mt19937& random) {
  std::gamma_distribution<float> weight(0.7f);
  Distribution probabilities(kVocabSize);
  for (float& p : probabilities) p = weight(random) + 0.01f;
  const float sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0f);
  for (float& p : probabilities) p /= sum;
  return probabilities;
}

// After nothing, and after each first token. A third token's distribution is that of the second.
struct Model {
  Distribution first;
  std::array<Distribution, kVocabSize> second;

  explicit Model(std::mt19937& random) : first(random_distribution(random)) {
    for (Distribution& probabilities : second) probabilities = random_distribution(random);
  }
  const Distribution& after(const std::vector<int32_t>& path) const {
    return path.empty() ? first : second[path[0]];
  }
};

int32_t draw(const Distribution& weights, std::mt19937& random) {
  return std::discrete_distribution<int32_t>(weights.begin(), weights.end())(random);
}

// Claimed survival of a draw: independent of the token, or its probability, which would be wrong.
enum class Survival { kByRank, kByToken };

// Two draws without replacement at the root and below the first of them, beside a fixed token.
DraftTree drafted_tree(const Model& draft, Survival survival, std::mt19937& random) {
  DraftTree tree;
  tree.reset(0);
  tree.add(DraftTree::kRoot, 1, 0.55f, 0);
  std::vector<int> parents = {DraftTree::kRoot};
  for (int level = 0; level < 2; ++level) {
    std::vector<int> children;
    for (const int parent : parents) {
      Distribution left = draft.after(tree.path(parent));
      const int distribution = tree.add_distribution(left);
      for (int i = 0; i < 2; ++i) {
        const int32_t token = draw(left, random);
        const float own = survival == Survival::kByRank ? (i == 0 ? 0.7f : 0.3f) : left[token];
        children.push_back(
            tree.add_sampled(parent, token, tree.survival(parent) * own, 1, distribution));
        left[token] = 0;
      }
    }
    std::sort(children.begin(), children.end());
    children.erase(std::unique(children.begin(), children.end()), children.end());
    parents = children;
  }
  return tree;
}

double p_value(Survival survival, int max_drafts, unsigned seed) {
  std::mt19937 random(seed);
  const Model target(random);
  const Model draft(random);
  std::uniform_real_distribution<double> coin(1e-12, 1.0);
  std::array<int64_t, kNumOutcomes> counts{};
  for (int trial = 0; trial < kTrials; ++trial) {
    DraftTree tree = drafted_tree(draft, survival, random);
    tree.truncate(max_drafts);
    tree.check_integrity();
    const Accepted accepted = accept_rejection(
        tree, [&](int node) -> std::span<const float> { return target.after(tree.path(node)); },
        [&](int, int) { return coin(random); });
    std::vector<int32_t> tokens = accepted.tokens;
    if (tokens.size() == 1) tokens.push_back(draw(target.second[tokens[0]], random));
    ++counts[tokens[0] * kVocabSize + tokens[1]];
  }
  std::array<double, kNumOutcomes> expected{};
  for (int i = 0; i < kNumOutcomes; ++i) {
    expected[i] = static_cast<double>(target.first[i / kVocabSize]) *
                  target.second[i / kVocabSize][i % kVocabSize];
  }
  return testing::chi_square_test(counts, expected).p_value;
}

class TruncatedTrees : public ::testing::TestWithParam<int> {};

TEST_P(TruncatedTrees, EmitTheTargetsDistribution) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    EXPECT_GT(p_value(Survival::kByRank, GetParam(), seed), 1e-4) << seed;
  }
}

// The check finds what it is there to find.
TEST_P(TruncatedTrees, WouldNotIfDrawsWereKeptByTheirTokens) {
  double least = 1;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    least = std::min(least, p_value(Survival::kByToken, GetParam(), seed));
  }
  EXPECT_LT(least, 1e-8);
}

INSTANTIATE_TEST_SUITE_P(MaxDrafts, TruncatedTrees, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace specdec
