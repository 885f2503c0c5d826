// Draws against exact distributions: each parameter alone, combinations, and planted wrong rules
// that the same test must refuse.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "testing/chi_square.h"
#include "testing/oracle/sampler.h"
#include "testing/sampler_harness.h"
#include "testing/values.h"

namespace specdec {
namespace {

using testing::chi_square_test;
using testing::random_values;
using testing::SamplerHarness;

constexpr int kVocabSize = 40;
constexpr int kNumDraws = 200000;
// A right sampler falls below the first once in ten thousand seeds; a wrong one must below the
// second.
constexpr double kAccept = 1e-4;
constexpr double kRefuse = 1e-12;

TEST(ChiSquare, PValuesMatchTables) {
  // Critical values of the usual tables, to the five digits they give.
  EXPECT_NEAR(testing::chi_square_p_value(3.8415, 1), 0.05, 1e-5);
  EXPECT_NEAR(testing::chi_square_p_value(18.307, 10), 0.05, 1e-5);
  EXPECT_NEAR(testing::chi_square_p_value(63.691, 40), 0.01, 1e-5);
  EXPECT_NEAR(testing::chi_square_p_value(20.707, 40), 0.995, 1e-5);
  EXPECT_NEAR(testing::chi_square_p_value(10.0, 2), std::exp(-5.0), 1e-14);
  EXPECT_NEAR(testing::chi_square_p_value(400.0, 2) / std::exp(-200.0), 1.0, 1e-10);
}

// One set of the lists a SampleRow borrows.
struct Lists {
  std::vector<TokenCount> counts = {{0, 0}, {1, 2},  {3, 0},  {5, 1},
                                    {8, 4}, {13, 0}, {21, 3}, {34, 1}};
  std::vector<std::pair<int32_t, float>> bias = {{2, 1.5f}, {5, -2.0f}, {30, 3.0f}};
  std::vector<int32_t> allowed = {0, 1, 2, 3, 5, 8, 9, 13, 21, 22, 30, 34, 39};
  std::vector<int32_t> banned = {8, 9, 17};
};
const Lists& lists() {
  static const Lists instance;
  return instance;
}

struct Case {
  std::string name;
  SampleRow params;
};

SampleRow penalized(float repetition, float frequency, float presence) {
  SampleRow row;
  row.repetition_penalty = repetition;
  row.frequency_penalty = frequency;
  row.presence_penalty = presence;
  row.counts = lists().counts;
  return row;
}

SampleRow everything() {
  SampleRow row = penalized(1.3f, 0.2f, -0.3f);
  row.temperature = 0.8f;
  row.top_k = 12;
  row.top_p = 0.9f;
  row.min_p = 0.02f;
  row.logit_bias = lists().bias;
  row.banned_token_ids = lists().banned;
  return row;
}

std::vector<Case> cases() {
  SampleRow allowed, banned, biased;
  allowed.allowed_token_ids = lists().allowed;
  banned.banned_token_ids = lists().banned;
  biased.logit_bias = lists().bias;
  SampleRow restricted = everything();
  restricted.allowed_token_ids = lists().allowed;
  SampleRow hot = everything();
  hot.temperature = 1.9f;
  hot.top_k = 0;
  SampleRow cold = everything();
  cold.temperature = 0.35f;
  cold.top_p = 0.99f;
  SampleRow wide = everything();
  wide.top_k = 30;
  wide.min_p = 0.0f;
  SampleRow negative_seed = everything();
  negative_seed.seed = ~uint64_t{0} - 5;
  return {{"Plain", {}},
          {"HighTemperature", {.temperature = 1.7f}},
          {"LowTemperature", {.temperature = 0.5f}},
          {"TopK", {.top_k = 7}},
          {"TopKOfOne", {.top_k = 1}},
          {"TopP", {.top_p = 0.8f}},
          {"TinyTopP", {.top_p = 0.01f}},
          {"MinP", {.min_p = 0.1f}},
          {"RepetitionPenalty", penalized(1.6f, 0.0f, 0.0f)},
          {"FrequencyPenalty", penalized(1.0f, 0.7f, 0.0f)},
          {"PresencePenalty", penalized(1.0f, 0.0f, 1.1f)},
          {"NegativePenalties", penalized(0.7f, -0.4f, -0.9f)},
          {"AllowedTokens", allowed},
          {"BannedTokens", banned},
          {"LogitBias", biased},
          {"TopKTopP", {.top_k = 9, .top_p = 0.7f}},
          {"TopKMinPTemperature", {.temperature = 1.4f, .top_k = 10, .min_p = 0.15f}},
          {"TopPMinP", {.temperature = 0.7f, .top_p = 0.85f, .min_p = 0.03f}},
          {"Everything", everything()},
          {"EverythingRestricted", restricted},
          {"EverythingHot", hot},
          {"EverythingCold", cold},
          {"EverythingWide", wide},
          {"EverythingWithAnotherSeed", negative_seed}};
}

class Distribution : public ::testing::TestWithParam<Case> {};

TEST_P(Distribution, DrawsFollowTheReference) {
  const std::vector<float> logits = random_values(kVocabSize, 11, 1.6f);
  const auto exact = reference::distribution(logits, GetParam().params);
  ASSERT_NEAR(std::accumulate(exact.probs.begin(), exact.probs.end(), 0.0), 1.0, 1e-12);
  SamplerHarness sampler;
  const auto counts = sampler.draw_counts(logits, GetParam().params, kNumDraws);
  const auto result = chi_square_test(counts, exact.probs);
  EXPECT_GT(result.p_value, kAccept)
      << result.statistic << " with " << result.degrees_of_freedom << " degrees of freedom";
}

INSTANTIATE_TEST_SUITE_P(Parameters, Distribution, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(DistributionOverSeeds, DrawsAtOnePositionFollowTheReference) {
  const std::vector<float> logits = random_values(kVocabSize, 12, 1.6f);
  SamplerHarness sampler;
  std::vector<int64_t> counts(kVocabSize);
  for (int i = 0; i < kNumDraws; ++i) {
    const SampleRow row = {.seed = static_cast<uint64_t>(i), .position = 77};
    ++counts[sampler.sample_one(logits, row).token_id];
  }
  EXPECT_GT(chi_square_test(counts, reference::distribution(logits, {}).probs).p_value, kAccept);
}

// ---- Planted wrong rules ----
// The processors in plain form, to be put together in any order.

using Logits = std::vector<double>;
using Rule = std::function<void(Logits&)>;

Logits softmax(const Logits& logits) {
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x);
  Logits probs;
  for (const double x : logits) probs.push_back(std::exp(x) / sum);
  return probs;
}

// Sets to -inf where `drop(probability, number of likelier tokens, their mass)` says so.
Rule drop_if(std::function<bool(double, int, double, double)> drop) {
  return [drop](Logits& logits) {
    const Logits probs = softmax(logits);
    const double greatest = *std::max_element(probs.begin(), probs.end());
    for (size_t i = 0; i < probs.size(); ++i) {
      int num_likelier = 0;
      double mass = 0.0;
      for (const double other : probs) {
        if (other <= probs[i]) continue;
        ++num_likelier;
        mass += other;
      }
      if (drop(probs[i], num_likelier, mass, greatest)) logits[i] = -INFINITY;
    }
  };
}
Rule top_k(int k) {
  return drop_if([k](double, int num_likelier, double, double) { return num_likelier >= k; });
}
Rule top_p(double p) {
  return drop_if([p](double, int, double mass, double) { return mass >= p; });
}
Rule min_p(double p) {
  return drop_if([p](double prob, int, double, double greatest) { return prob < p * greatest; });
}
Rule temperature(double t) {
  return [t](Logits& logits) {
    for (double& x : logits) x /= t;
  };
}
Rule repetition(double penalty, bool outputs_only = false) {
  return [=](Logits& logits) {
    for (const TokenCount& count : lists().counts) {
      if (outputs_only && count.output_count == 0) continue;
      double& x = logits[count.token_id];
      x = x > 0 ? x / penalty : x * penalty;
    }
  };
}
Rule frequency(double penalty) {
  return [=](Logits& logits) {
    for (const TokenCount& count : lists().counts) {
      logits[count.token_id] -= penalty * count.output_count;
    }
  };
}
Rule presence(double penalty, bool prompt_too = false) {
  return [=](Logits& logits) {
    for (const TokenCount& count : lists().counts) {
      if (prompt_too || count.output_count > 0) logits[count.token_id] -= penalty;
    }
  };
}

struct PlantedCase {
  std::string name;
  SampleRow params;
  std::vector<Rule> right;
  std::vector<Rule> wrong;
};

std::vector<PlantedCase> planted_cases() {
  SampleRow penalties = penalized(1.6f, 0.5f, 0.25f);
  SampleRow hot_penalties = penalties;
  hot_penalties.temperature = 1.5f;
  return {
      {"TopPBeforeTopK",
       {.top_k = 6, .top_p = 0.75f},
       {top_k(6), top_p(0.75)},
       {top_p(0.75), top_k(6)}},
      {"MinPBeforeTemperature",
       {.temperature = 1.8f, .min_p = 0.125f},
       {temperature(1.8f), min_p(0.125)},
       {min_p(0.125), temperature(1.8f)}},
      {"MinPOmitted",
       {.temperature = 1.5f, .min_p = 0.125f},
       {temperature(1.5f), min_p(0.125)},
       {temperature(1.5f)}},
      {"TopPBeforeTemperature",
       {.temperature = 0.5f, .top_p = 0.75f},
       {temperature(0.5f), top_p(0.75)},
       {top_p(0.75), temperature(0.5f)}},
      {"TopPLeavesOutTheTokenThatReachesIt",
       {.top_p = 0.75f},
       {top_p(0.75)},
       {drop_if([](double prob, int num_likelier, double mass, double) {
         return num_likelier > 0 && mass + prob > 0.75;
       })}},
      {"TopKKeepsOneMore", {.top_k = 6}, {top_k(6)}, {top_k(7)}},
      {"PenaltiesAfterTemperature",
       hot_penalties,
       {repetition(1.6f), frequency(0.5), presence(0.25), temperature(1.5f)},
       {temperature(1.5f), repetition(1.6f), frequency(0.5), presence(0.25)}},
      {"RepetitionOnOutputsOnly",
       penalties,
       {repetition(1.6f), frequency(0.5), presence(0.25)},
       {repetition(1.6f, true), frequency(0.5), presence(0.25)}},
      {"PresenceOnPromptToo",
       penalties,
       {repetition(1.6f), frequency(0.5), presence(0.25)},
       {repetition(1.6f), frequency(0.5), presence(0.25, true)}},
      {"RepetitionAfterTheOthers",
       penalties,
       {repetition(1.6f), frequency(0.5), presence(0.25)},
       {frequency(0.5), presence(0.25), repetition(1.6f)}},
      {"TemperatureOneTwentiethOff",
       {.temperature = 1.0f},
       {temperature(1.0)},
       {temperature(1.05)}},
  };
}

class PlantedRule : public ::testing::TestWithParam<PlantedCase> {};

TEST_P(PlantedRule, IsRefusedAndTheRightOneAccepted) {
  const PlantedCase& param = GetParam();
  const std::vector<float> logits = random_values(kVocabSize, 13, 1.6f);
  const auto probs_by = [&](const std::vector<Rule>& rules) {
    Logits processed(logits.begin(), logits.end());
    for (const Rule& rule : rules) rule(processed);
    return softmax(processed);
  };
  SamplerHarness sampler;
  const auto counts = sampler.draw_counts(logits, param.params, kNumDraws);
  const Logits right = probs_by(param.right);
  EXPECT_GT(chi_square_test(counts, right).p_value, kAccept);
  EXPECT_LT(chi_square_test(counts, probs_by(param.wrong)).p_value, kRefuse);
  const auto exact = reference::distribution(logits, param.params);
  for (int i = 0; i < kVocabSize; ++i) EXPECT_NEAR(exact.probs[i], right[i], 1e-7) << i;
}

INSTANTIATE_TEST_SUITE_P(Rules, PlantedRule, ::testing::ValuesIn(planted_cases()),
                         [](const auto& info) { return info.param.name; });

// ---- Noise ----

// The test of the pairs drawn at neighbouring places (positions, tokens' order, seeds) against
// independence; `draw(i, j)` is draw j in {0, 1} of pair i.
double pair_p_value(const std::vector<double>& probs,
                    const std::function<int32_t(int, int)>& draw) {
  const size_t n = probs.size();
  std::vector<double> joint(n * n);
  for (size_t i = 0; i < n * n; ++i) joint[i] = probs[i / n] * probs[i % n];
  std::vector<int64_t> counts(n * n);
  for (int i = 0; i < kNumDraws; ++i) ++counts[draw(i, 0) * n + draw(i, 1)];
  return chi_square_test(counts, joint).p_value;
}

class NoisePairs : public ::testing::Test {
 protected:
  int32_t draw(uint64_t seed, int64_t position) {
    return sampler_.sample_one(logits_, {.seed = seed, .position = position}).token_id;
  }

  std::vector<float> logits_ = random_values(8, 14);
  std::vector<double> probs_ = reference::distribution(logits_, {}).probs;
  SamplerHarness sampler_;
};

TEST_F(NoisePairs, NeighbouringPositionsAreIndependent) {
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw(3, 2 * i + j); }), kAccept);
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw(3, i + (int64_t{j} << 32)); }),
            kAccept);
}

TEST_F(NoisePairs, NeighbouringSeedsAreIndependent) {
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw(2 * i + j, 5); }), kAccept);
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw(i + (uint64_t(j) << 32), 5); }),
            kAccept);
}

TEST_F(NoisePairs, StreamsAreIndependent) {
  const auto draw_in = [&](int position, int stream) {
    const SampleRow row = {
        .seed = 3, .position = position, .noise_stream = static_cast<uint32_t>(stream)};
    return sampler_.sample_one(logits_, row).token_id;
  };
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw_in(i, j); }), kAccept);
  EXPECT_GT(pair_p_value(probs_, [&](int i, int j) { return draw_in(7, 2 * i + j); }), kAccept);
}

// Draws without replacement: the second candidate given the first is a draw from what is left.
TEST_F(NoisePairs, CandidatesAreDrawnWithoutReplacement) {
  const size_t n = probs_.size();
  std::vector<double> joint(n * n, 0.0);
  for (size_t i = 0; i < n * n; ++i) {
    if (i / n != i % n) joint[i] = probs_[i / n] * probs_[i % n] / (1.0 - probs_[i / n]);
  }
  std::vector<int64_t> counts(n * n);
  for (int position = 0; position < kNumDraws; ++position) {
    const SampleRow row = {.seed = 8, .position = position, .noise_stream = 1, .num_candidates = 2};
    const auto candidates = sampler_.sample_one(logits_, row).candidates;
    ++counts[candidates[0].token_id * n + candidates[1].token_id];
  }
  EXPECT_GT(chi_square_test(counts, joint).p_value, kAccept);
}

TEST_F(NoisePairs, NoiseReusedAcrossPositionsIsRefused) {
  EXPECT_LT(pair_p_value(probs_, [&](int i, int) { return draw(3, i); }), kRefuse);
}

TEST(Noise, SharedByTheFourTokensOfACounterIsRefused) {
  const std::vector<float> logits = random_values(8, 15);
  std::vector<int64_t> counts(logits.size());
  for (int position = 0; position < kNumDraws; ++position) {
    int32_t best = 0;
    double best_value = -INFINITY;
    for (int32_t token = 0; token < 8; ++token) {
      const double value = logits[token] + reference::noise(1, position, token / 4 * 4);
      if (value > best_value) best = token, best_value = value;
    }
    ++counts[best];
  }
  EXPECT_LT(chi_square_test(counts, reference::distribution(logits, {}).probs).p_value, kRefuse);
}

}  // namespace
}  // namespace specdec
