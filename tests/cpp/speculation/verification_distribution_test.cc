// Speculative decoding of small random languages: what is emitted, several tokens jointly, follows
// the target's distribution; with planted wrong rules the same test must refuse.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "speculation/verification.h"
#include "testing/chi_square.h"
#include "testing/toy_language.h"

namespace specdec {
namespace {

using testing::draw_distinct;
using testing::Fault;
using testing::gumbel_noise;
using testing::most_likely;
using testing::Path;
using testing::ToyLanguage;

constexpr int kNumTrials = 60000;
// A right rule falls below the first once in ten thousand seeds; a wrong one must below the second.
constexpr double kAccept = 1e-4;
constexpr double kRefuse = 1e-12;

// One set of tries at a node.
struct Tries {
  int drafter = 0;
  int num_sampled = 0;  // drawn without replacement from the drafter
  int num_likely = 0;   // its most likely tokens, deterministic
};
Tries sampled(int count, int drafter = 0) {
  return {.drafter = drafter, .num_sampled = count, .num_likely = 0};
}
Tries likely(int count, int drafter = 0) {
  return {.drafter = drafter, .num_sampled = 0, .num_likely = count};
}
// The tries at all nodes of a depth, for each depth.
using Shape = std::vector<std::vector<Tries>>;

// Faults of drafting.
enum class DraftFault {
  kNone,
  kDropsUnlikelyDraws,       // a drawn token is kept only if its probability is high
  kReportsUnprocessedDraft,  // the distribution given is not the one drawn from
  kSharedNoise,              // the draws of two drafters use the same noise
  kNoiseOfPositions,         // a position's noise is the same in every step
};

using Rule = std::function<Accepted(const DraftTree&, const TargetSource&, const UniformSource&)>;
// The uniforms of the step whose root is the `root`-th token.
using Uniforms = std::function<UniformSource(uint64_t seed, int64_t root)>;

Rule plain_rejection(Fault fault) {
  return [fault](const auto& tree, const auto& target, const auto& uniform) {
    return testing::plain_rejection(tree, target, uniform, fault);
  };
}
Rule plain_block(Fault fault) {
  return [fault](const auto& tree, const auto& target, const auto& uniform) {
    return testing::plain_block(tree, target, uniform, fault);
  };
}

// Uniforms that depend on the position of a token alone, so that steps meet them again.
UniformSource uniforms_of_positions(uint64_t seed, int64_t root) {
  return [=](int depth, int index) { return step_uniforms(seed, root + depth)(1, index); };
}

struct Case {
  std::string name;
  int vocab_size = 4;
  int num_tokens = 3;  // looked at jointly
  Shape shape;
  Rule rule = accept_rejection;
  DraftFault draft_fault = DraftFault::kNone;
  Uniforms uniforms = step_uniforms;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Simulation {
 public:
  explicit Simulation(const Case& params)
      : params_(params),
        target_(params.vocab_size, 128),
        drafters_{{params.vocab_size, 129}, {params.vocab_size, 130}} {}

  // The chi-square test of the first tokens that speculative decoding emits, step by step.
  testing::ChiSquareResult run(int num_trials = kNumTrials) {
    const auto size = static_cast<size_t>(params_.vocab_size);
    size_t num_outcomes = 1;
    for (int i = 0; i < params_.num_tokens; ++i) num_outcomes *= size;
    std::vector<double> probs(num_outcomes);
    std::vector<int64_t> counts(num_outcomes);
    for (size_t outcome = 0; outcome < num_outcomes; ++outcome) {
      Path tokens;
      for (size_t rest = outcome; static_cast<int>(tokens.size()) < params_.num_tokens;
           rest /= size) {
        tokens.push_back(static_cast<int32_t>(rest % size));
      }
      probs[outcome] = target_.probability(tokens);
    }
    for (int trial = 0; trial < num_trials; ++trial) {
      const Path tokens = generate(static_cast<uint64_t>(trial));
      size_t outcome = 0;
      for (int i = params_.num_tokens - 1; i >= 0; --i) {
        outcome = outcome * size + static_cast<size_t>(tokens[static_cast<size_t>(i)]);
      }
      ++counts[outcome];
    }
    return testing::chi_square_test(counts, probs);
  }

  double mean_accepted_per_step() const {
    return static_cast<double>(num_accepted_) / static_cast<double>(num_steps_);
  }

 private:
  Path generate(uint64_t seed) {
    Path tokens;
    while (static_cast<int>(tokens.size()) < params_.num_tokens) {
      DraftTree tree;
      draft(seed, tokens, tree);
      const TargetSource target = [&](int node) {
        return std::span<const float>(target_.next(joined(tokens, tree.path(node))));
      };
      const UniformSource uniform = params_.uniforms(seed, static_cast<int64_t>(tokens.size()));
      const Accepted accepted = params_.rule(tree, target, uniform);
      num_accepted_ += static_cast<int64_t>(accepted.nodes.size());
      ++num_steps_;
      tokens.insert(tokens.end(), accepted.tokens.begin(), accepted.tokens.end());
    }
    return tokens;
  }

  static Path joined(Path path, const Path& more) {
    path.insert(path.end(), more.begin(), more.end());
    return path;
  }

  void draft(uint64_t seed, const Path& committed, DraftTree& tree) {
    tree.reset(0);
    for (int node = 0; node < tree.num_nodes(); ++node) {
      if (tree.depth(node) == static_cast<int>(params_.shape.size())) continue;
      const Path path = joined(committed, tree.path(node));
      if (params_.draft_fault == DraftFault::kNoiseOfPositions) {
        random_.seed(seed * 1000 + path.size());
      }
      auto noise = gumbel_noise(params_.vocab_size, random_);
      for (const Tries& tries : params_.shape[static_cast<size_t>(tree.depth(node))]) {
        add_tries(tries, path, noise, node, tree);
        if (params_.draft_fault == DraftFault::kSharedNoise) continue;
        noise = gumbel_noise(params_.vocab_size, random_);
      }
    }
  }

  void add_tries(const Tries& tries, const Path& path, const std::vector<double>& noise, int node,
                 DraftTree& tree) {
    const std::vector<float>& q = drafters_[tries.drafter].next(path);
    for (const int32_t token : most_likely(q, tries.num_likely)) {
      tree.add(node, token, 1.0f, tries.drafter);
    }
    if (tries.num_sampled == 0) return;
    std::vector<float> drawn_from = q;
    if (params_.draft_fault == DraftFault::kReportsUnprocessedDraft) {
      for (float& x : drawn_from) x *= x;
    }
    const int distribution = tree.add_distribution(q);
    for (const int32_t token : draw_distinct(drawn_from, tries.num_sampled, noise)) {
      const bool is_unlikely = q[static_cast<size_t>(token)] < 0.2f;
      if (params_.draft_fault == DraftFault::kDropsUnlikelyDraws && is_unlikely) break;
      tree.add_sampled(node, token, 1.0f, tries.drafter, distribution);
    }
  }

  const Case& params_;
  ToyLanguage target_;
  ToyLanguage drafters_[2];
  std::mt19937_64 random_{12345};
  int64_t num_accepted_ = 0;
  int64_t num_steps_ = 0;
};

Shape chain(int length, Tries tries) { return Shape(static_cast<size_t>(length), {tries}); }

std::vector<Case> right_cases() {
  std::vector<Case> cases;
  for (int k = 1; k <= 4; ++k) {
    const std::string length = std::to_string(k);
    cases.push_back({.name = "SampledChain" + length, .shape = chain(k, sampled(1))});
    cases.push_back({.name = "DeterministicChain" + length, .shape = chain(k, likely(1))});
    cases.push_back(
        {.name = "BlockOfSampled" + length, .shape = chain(k, sampled(1)), .rule = accept_block});
  }
  const Shape mixed_chain = {{likely(1)}, {sampled(1)}, {sampled(1)}, {likely(1)}};
  const Shape pairs = chain(2, sampled(2)), triples = chain(2, sampled(3));
  const Shape ragged = {{sampled(3)}, {sampled(1)}, {sampled(2)}};
  const Shape mixed = chain(2, {.drafter = 0, .num_sampled = 2, .num_likely = 1});
  const Shape two_drafters = {{sampled(2), sampled(2, 1)}, {sampled(1, 1), sampled(2)}};
  const Shape sampled_then_likely = {{sampled(2), likely(2, 1)}, {sampled(1), likely(1)}};
  const Shape everything = {{likely(1, 1), sampled(2), sampled(1, 1)}, {sampled(2), likely(2)}};
  const std::vector<Case> more = {
      {.name = "BlockOfDeterministic", .shape = chain(3, likely(1)), .rule = accept_block},
      {.name = "BlockOfMixed", .shape = mixed_chain, .rule = accept_block},
      {.name = "MixedChain", .shape = mixed_chain},
      {.name = "PairsWithoutReplacement", .shape = pairs},
      {.name = "TriplesWithoutReplacement", .shape = triples},
      {.name = "WholeVocabularyWithoutReplacement", .shape = chain(1, sampled(4))},
      {.name = "LikelyPairs", .shape = chain(2, likely(2))},
      {.name = "RaggedTree", .shape = ragged},
      {.name = "LikelyThenSampled", .shape = mixed},
      {.name = "SampledThenLikely", .shape = sampled_then_likely},
      {.name = "TwoDrafters", .shape = two_drafters},
      {.name = "Everything", .shape = everything},
      {.name = "TreeOfTwelveTokens", .vocab_size = 12, .num_tokens = 2, .shape = triples},
      {.name = "BlockOfTwelveTokens",
       .vocab_size = 12,
       .num_tokens = 2,
       .shape = chain(3, sampled(1)),
       .rule = accept_block},
      {.name = "TreeOfSevenTokens", .vocab_size = 7, .num_tokens = 2, .shape = everything},
      {.name = "UniformsOfPositionsWillDoForTokenwise",
       .shape = chain(3, sampled(1)),
       .uniforms = uniforms_of_positions},
      {.name = "NoiseOfPositionsWillDoForTokenwise",
       .shape = chain(3, sampled(1)),
       .draft_fault = DraftFault::kNoiseOfPositions},
      {.name = "NoDrafts", .shape = {}}};
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

class Emitted : public ::testing::TestWithParam<Case> {};

TEST_P(Emitted, TokensFollowTheTarget) {
  Simulation simulation(GetParam());
  const auto result = simulation.run();
  EXPECT_GT(result.p_value, kAccept)
      << result.statistic << " with " << result.degrees_of_freedom << " degrees of freedom";
  if (!GetParam().shape.empty()) {
    EXPECT_GT(simulation.mean_accepted_per_step(), 0.2);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafts, Emitted, ::testing::ValuesIn(right_cases()), name_of);

std::vector<Case> planted_cases() {
  const Shape sampled_chain = chain(3, sampled(1)), likely_chain = chain(2, likely(1));
  const Shape triples = chain(2, sampled(3));
  const Shape likely_pairs = chain(2, likely(2));
  std::vector<Case> cases = {{.name = "InvertedRatio",
                              .shape = sampled_chain,
                              .rule = plain_rejection(Fault::kInvertedRatio)},
                             {.name = "ResidualNotRenormalizedForTheNextTry",
                              .shape = triples,
                              .rule = plain_rejection(Fault::kNotRenormalized)},
                             {.name = "ResidualNotRenormalizedAmongDeterministic",
                              .shape = likely_pairs,
                              .rule = plain_rejection(Fault::kNotRenormalized)},
                             {.name = "RejectedTokenNotRemoved",
                              .shape = likely_chain,
                              .rule = plain_rejection(Fault::kRejectedTokenStays)},
                             {.name = "DrawFromTheTargetAfterARejection",
                              .shape = sampled_chain,
                              .rule = plain_rejection(Fault::kDrawsFromTarget)},
                             {.name = "CoinSharedWithTheDraw",
                              .shape = sampled_chain,
                              .rule = plain_rejection(Fault::kSharedCoin)},
                             {.name = "CoinSharedWithTheDrawAfterDeterministic",
                              .shape = likely_chain,
                              .rule = plain_rejection(Fault::kSharedCoin)},
                             {.name = "WithReplacementLawForDrawsWithout",
                              .shape = triples,
                              .rule = plain_rejection(Fault::kWithReplacement)},
                             {.name = "UnprocessedDraftDistribution",
                              .shape = sampled_chain,
                              .draft_fault = DraftFault::kReportsUnprocessedDraft},
                             {.name = "UnlikelyDrawsDropped",
                              .shape = sampled_chain,
                              .draft_fault = DraftFault::kDropsUnlikelyDraws},
                             {.name = "NoiseSharedByTwoDrafters",
                              .vocab_size = 7,
                              .num_tokens = 2,
                              .shape = {{sampled(1), sampled(1, 1)}, {sampled(1), sampled(1, 1)}},
                              .draft_fault = DraftFault::kSharedNoise}};
  for (const auto& [name, fault] :
       {std::pair{"BlockDrawsTheTokenwiseResidual", Fault::kTokenwiseResidual},
        {"BlockStopsAtTheFirstRefusal", Fault::kStopsAtFirstRefusal},
        {"BlockWithTokenwiseChances", Fault::kTokenwiseChance}}) {
    cases.push_back({.name = name, .shape = sampled_chain, .rule = plain_block(fault)});
  }
  cases.push_back({.name = "BlockWithUniformsOfPositions",
                   .shape = sampled_chain,
                   .rule = accept_block,
                   .uniforms = uniforms_of_positions});
  cases.push_back({.name = "BlockWithNoiseOfPositions",
                   .vocab_size = 3,
                   .num_tokens = 4,
                   .shape = sampled_chain,
                   .rule = accept_block,
                   .draft_fault = DraftFault::kNoiseOfPositions});
  return cases;
}

class PlantedRule : public ::testing::TestWithParam<Case> {};

TEST_P(PlantedRule, IsRefused) {
  const auto result = Simulation(GetParam()).run();
  EXPECT_LT(result.p_value, kRefuse) << result.statistic;
}

INSTANTIATE_TEST_SUITE_P(Rules, PlantedRule, ::testing::ValuesIn(planted_cases()), name_of);

TEST(PlantedRules, AreRightWithoutTheirFault) {
  for (const Rule& rule : {plain_rejection(Fault::kNone), plain_block(Fault::kNone)}) {
    const Case params = {.name = "", .shape = chain(3, sampled(1)), .rule = rule};
    EXPECT_GT(Simulation(params).run().p_value, kAccept);
  }
}

// ---- How much is accepted ----

struct Moments {
  double sum = 0.0, sum_of_squares = 0.0;
  int count = 0;

  void add(double x) { sum += x, sum_of_squares += x * x, ++count; }
  double mean() const { return sum / count; }
  double standard_error() const {
    return std::sqrt((sum_of_squares / count - mean() * mean()) / count);
  }
};

TEST(AcceptedLength, OfAMemorylessDraftIsTheGeometricSum) {
  const std::vector<float> target = {0.5f, 0.3f, 0.2f, 0.0f}, draft = {0.2f, 0.3f, 0.25f, 0.25f};
  const double alpha = 0.2 + 0.3 + 0.2;
  const TargetSource source = [&](int) { return std::span<const float>(target); };
  std::mt19937_64 random(1);
  for (const int k : {1, 2, 3, 5, 8}) {
    Moments emitted;
    for (int trial = 0; trial < 40000; ++trial) {
      DraftTree tree;
      tree.reset(0);
      const int distribution = tree.add_distribution(draft);
      for (int node = 0; node < k; ++node) {
        const int32_t token = draw_distinct(draft, 1, gumbel_noise(4, random))[0];
        tree.add_sampled(node, token, 1.0f, 0, distribution);
      }
      const auto accepted = accept_rejection(tree, source, step_uniforms(2, trial * 10 + k));
      emitted.add(static_cast<double>(accepted.tokens.size()));
    }
    const double expected = (1.0 - std::pow(alpha, k + 1)) / (1.0 - alpha);
    EXPECT_NEAR(emitted.mean(), expected, 5 * emitted.standard_error()) << k;
  }
}

// Every chain of K drafts with its probability.
void for_each_chain(ToyLanguage& draft, int k,
                    const std::function<void(const DraftTree&, double)>& visit) {
  const auto size = static_cast<size_t>(draft.vocab_size());
  const auto num_chains = static_cast<size_t>(std::pow(size, k));
  for (size_t index = 0; index < num_chains; ++index) {
    DraftTree tree;
    tree.reset(0);
    size_t rest = index;
    for (int node = 0; node < k; ++node, rest /= size) {
      const int distribution = tree.add_distribution(draft.next(tree.path(node)));
      tree.add_sampled(node, static_cast<int32_t>(rest % size), 1.0f, 0, distribution);
    }
    visit(tree, draft.probability(tree.path(k)));
  }
}

TEST(AcceptedLength, OfABlockIsNeverLessThanTokenwise) {
  int num_greater = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const int k = 1 + static_cast<int>(seed % 4);
    ToyLanguage target(3, 2 * seed), draft(3, 2 * seed + 1);
    double tokenwise = 0.0, block = 0.0;
    for_each_chain(draft, k, [&](const DraftTree& tree, double probability) {
      const TargetSource source = [&](int node) {
        return std::span<const float>(target.next(tree.path(node)));
      };
      double survival = 1.0;
      for (int i = 1; i <= k; ++i) {
        const auto token = static_cast<size_t>(tree.tokens()[i]);
        const double p = testing::normalized(source(i - 1))[token];
        survival *= std::min(1.0, p / testing::proposal_at(tree, i - 1, 0, 3)[token]);
        tokenwise += probability * survival;
      }
      const auto chances = testing::block_chances(tree, source).chances;
      double none_later = 1.0;
      for (int i = k; i >= 1; --i) {
        block += probability * i * chances[static_cast<size_t>(i)] * none_later;
        none_later *= 1.0 - chances[static_cast<size_t>(i)];
      }
    });
    EXPECT_GE(block, tokenwise - 1e-6) << seed;
    if (k == 1) {
      EXPECT_NEAR(block, tokenwise, 1e-6);
    }
    num_greater += block > tokenwise + 1e-3;
  }
  EXPECT_GE(num_greater, 25);
}

TEST(AcceptedLength, OfABlockIsMoreThanTokenwiseInTheLibraryToo) {
  ToyLanguage target(5, 7), draft(5, 8);
  std::mt19937_64 random(9);
  Moments gain;
  for (int trial = 0; trial < 60000; ++trial) {
    DraftTree tree;
    tree.reset(0);
    for (int node = 0; node < 4; ++node) {
      const auto& q = draft.next(tree.path(node));
      const int distribution = tree.add_distribution(q);
      tree.add_sampled(node, draw_distinct(q, 1, gumbel_noise(5, random))[0], 1.0f, 0,
                       distribution);
    }
    const TargetSource source = [&](int node) {
      return std::span<const float>(target.next(tree.path(node)));
    };
    const UniformSource uniform = step_uniforms(3, trial);
    const auto block = accept_block(tree, source, uniform);
    const auto tokenwise = accept_rejection(tree, source, uniform);
    gain.add(static_cast<double>(block.nodes.size()) - static_cast<double>(tokenwise.nodes.size()));
  }
  EXPECT_GT(gain.mean(), 5 * gain.standard_error());
}

}  // namespace
}  // namespace specdec
