// Functions of the sampler for drafting and verification: candidates, distributions, and the
// logprobs of a token that was chosen elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/sampler.h"
#include "testing/cpu_isas.h"
#include "testing/draft_vocabulary.h"
#include "testing/oracle/sampler.h"
#include "testing/sampler_harness.h"
#include "testing/sampler_rows.h"
#include "testing/values.h"

namespace specdec {
namespace {

using testing::describe;
using testing::random_values;
using testing::RandomRow;
using testing::reported_as_kept;
using testing::SamplerHarness;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits, up to a hundred here, are rounded to float after each processor. Below the least normal
// float a probability becomes 0.
double tolerance(double probability) { return 1e-5 * probability + 2e-38; }

class DraftSampling : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  SamplerHarness sampler_{GetParam()};
};

TEST_P(DraftSampling, AHeadOfSomeTokensDrawsAsOneThatGivesTheOthersNothing) {
  std::mt19937 random(29);
  for (const auto& [num_columns, size] : {std::pair(1, 1), {5, 70}, {300, 5000}, {1000, 1000}}) {
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      SCOPED_TRACE(size);
      testing::expect_draws_over_all_tokens(sampler_, num_columns, size, mode, random);
    }
  }
}

TEST_P(DraftSampling, CandidatesAreThoseOfTheReference) {
  std::mt19937 random(23);
  int num_rows = 0, num_equal = 0;
  for (const int vocab_size : {1, 2, 17, 63, 1000, 5000}) {
    for (int i = 0; i < 100; ++i) {
      const RandomRow row(vocab_size, random);
      SampleRow params = row.params;
      params.top_p = 1.0f;  // its boundary is looked at elsewhere
      params.num_candidates = 1 + static_cast<int>(random() % 12);
      params.noise_stream = static_cast<uint32_t>(i % 3 == 0 ? 0 : random());
      if (i % 4 == 3) params.temperature = 0.0f;
      const auto logits = random_values(vocab_size, random(), 2.5f);
      const auto expected = reference::candidates(reference::distribution(logits, params), params);
      const auto result = sampler_.sample_one(logits, params);
      ASSERT_EQ(result.candidates.size(), expected.size());
      EXPECT_EQ(result.candidates[0].token_id, result.token_id);
      bool equal = true;
      for (size_t j = 0; j < expected.size(); ++j) {
        equal = equal && result.candidates[j].token_id == expected[j].token_id;
        if (equal) {
          ASSERT_NEAR(result.candidates[j].probability, expected[j].probability,
                      tolerance(expected[j].probability));
        }
      }
      num_equal += equal;
      ++num_rows;
    }
  }
  // Two perturbed values may be equal in float; that is rare.
  EXPECT_GE(num_equal, num_rows - 2);
}

TEST_P(DraftSampling, ACandidateIsWhatIsDrawnOnceTheEarlierOnesAreBanned) {
  for (const int vocab_size : {40, 3000}) {
    const auto logits = random_values(vocab_size, 24, 2.0f);
    for (int64_t position = 0; position < 30; ++position) {
      const SampleRow params = {
          .temperature = 0.8f, .seed = 6, .position = position, .noise_stream = 3};
      SampleRow with_candidates = params;
      with_candidates.num_candidates = 6;
      const auto result = sampler_.sample_one(logits, with_candidates);
      ASSERT_EQ(result.candidates.size(), 6u);
      std::vector<int32_t> banned;
      for (const Candidate& candidate : result.candidates) {
        SampleRow masked = params;
        masked.banned_token_ids = banned;
        EXPECT_EQ(candidate.token_id, sampler_.sample_one(logits, masked).token_id);
        banned.push_back(candidate.token_id);
      }
    }
  }
}

TEST_P(DraftSampling, GreedyCandidatesAreTheLikeliestTokensTiesByLowestId) {
  const std::vector<float> logits = {1, kNan, 3, 3, -kInf, 2, 3};
  const auto result = sampler_.sample_one(logits, {.temperature = 0.0f, .num_candidates = 9});
  std::vector<int32_t> ids;
  double total = 0.0;
  for (const Candidate& candidate : result.candidates) {
    ids.push_back(candidate.token_id);
    total += candidate.probability;
  }
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 3, 6, 5, 0}));
  EXPECT_NEAR(total, 1.0, 1e-6);
  EXPECT_EQ(result.candidates[0].probability, result.candidates[1].probability);
  EXPECT_NEAR(result.candidates[0].probability / result.candidates[4].probability, std::exp(2.0),
              1e-5);
}

TEST_P(DraftSampling, DistributionsMatchDoublePrecision) {
  std::mt19937 random(25);
  for (const int vocab_size : {1, 2, 17, 1000, 20000}) {
    for (int i = 0; i < 40; ++i) {
      const RandomRow row(vocab_size, random);
      SampleRow params = row.params;
      params.top_p = 1.0f;  // its boundary is looked at elsewhere
      if (i % 4 == 3) params.temperature = 0.0f;
      const auto logits = random_values(vocab_size, random(), 3.0f);
      const auto expected = reference::distribution(logits, params).probs;
      std::vector<float> distribution(vocab_size, kNan);
      params.distribution = distribution.data();
      params.want_logprobs = i % 2 == 0;
      params.num_logprobs = 2;
      sampler_.sample_one(logits, params,
                          i % 3 == 0 ? LogprobsMode::kProcessed : LogprobsMode::kRaw);
      for (int token = 0; token < vocab_size; ++token) {
        if (expected[token] == 0.0) {
          ASSERT_EQ(distribution[token], 0.0f) << token;
        } else {
          ASSERT_NEAR(distribution[token], expected[token], tolerance(expected[token]));
        }
      }
    }
  }
}

TEST_P(DraftSampling, TruncationByTopPShowsInTheDistribution) {
  std::mt19937 random(26);
  for (int i = 0; i < 60; ++i) {
    const RandomRow row(800, random);
    SampleRow params = row.params;
    params.top_p = 0.7f;
    std::vector<float> distribution(800, kNan);
    const auto logits = random_values(800, random(), 2.0f);
    const auto kept =
        reported_as_kept(sampler_.sample_one(logits, params, LogprobsMode::kProcessed), 800);
    params.distribution = distribution.data();
    params.want_logprobs = false;
    sampler_.sample_one(logits, params);
    double total = 0.0;
    for (int token = 0; token < 800; ++token) {
      ASSERT_EQ(distribution[token] > 0.0f, kept[token]) << token;
      total += distribution[token];
    }
    EXPECT_NEAR(total, 1.0, 1e-5);
  }
}

TEST_P(DraftSampling, ADistributionIsOneHotWhereNothingIsDrawn) {
  const std::vector<int32_t> first = {0, 1};
  std::vector<float> distribution(70);
  const auto one_at = [&](int token) {
    for (int i = 0; i < 70; ++i) ASSERT_EQ(distribution[i], i == token ? 1.0f : 0.0f) << i;
  };
  for (const float temperature : {0.0f, 1.0f}) {
    distribution.assign(70, kNan);
    const SampleRow params = {.temperature = temperature,
                              .banned_token_ids = first,
                              .num_candidates = 4,
                              .distribution = distribution.data()};
    const auto result = sampler_.sample_one(std::vector<float>(70, kNan), params);
    one_at(2);
    ASSERT_EQ(result.candidates.size(), 1u);
    EXPECT_EQ(result.candidates[0].token_id, 2);
    EXPECT_EQ(result.candidates[0].probability, 1.0f);
  }
  distribution.assign(70, kNan);
  const auto logits = random_values(70, 27);
  const SampleRow greedy = {.temperature = 0.0f, .distribution = distribution.data()};
  one_at(sampler_.sample_one(logits, greedy).token_id);
}

TEST_P(DraftSampling, AskingForCandidatesOrTheDistributionChangesNoOtherResult) {
  std::mt19937 random(28);
  for (int i = 0; i < 200; ++i) {
    const RandomRow row(1500, random);
    SampleRow plain = row.params;
    plain.num_logprobs = 5;
    if (i % 5 == 4) plain.temperature = 0.0f;
    SampleRow more = plain;
    std::vector<float> distribution(1500);
    more.num_candidates = i % 2 == 0 ? 4 : 0;
    more.distribution = i % 3 == 0 ? nullptr : distribution.data();
    const auto logits = random_values(1500, random(), 2.0f);
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      SampleResult result = sampler_.sample_one(logits, more, mode);
      result.candidates.clear();
      EXPECT_EQ(describe(result), describe(sampler_.sample_one(logits, plain, mode)));
    }
  }
}

TEST_P(DraftSampling, AForcedTokenIsReportedAfterItsOwnProcessorsInThatModeOnly) {
  const auto logits = random_values(1000, 12, 2.0f);
  const std::vector<int32_t> banned = {4, 6};
  const SampleRow params = {.temperature = 0.5f,
                            .top_k = 2,
                            .banned_token_ids = banned,
                            .num_logprobs = 3,
                            .want_logprobs = true,
                            .forced_token = 5};
  const auto exact = reference::distribution(logits, params);
  for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
    const auto& expected =
        mode == LogprobsMode::kRaw ? exact.raw_logprobs : exact.processed_logprobs;
    const auto result = sampler_.sample_one(logits, params, mode);
    EXPECT_EQ(result.token_id, 5);
    ASSERT_EQ(result.logprobs.size(), 4u);
    EXPECT_EQ(result.logprobs[0].token_id, 5);
    for (const Logprob& entry : result.logprobs) {
      if (expected[entry.token_id] == -INFINITY) {
        EXPECT_EQ(entry.logprob, -kInf);
      } else {
        EXPECT_NEAR(entry.logprob, expected[entry.token_id], 1e-5);
      }
    }
  }
}

TEST_P(DraftSampling, AForcedRowReportsWhatDrawingThatTokenReports) {
  std::mt19937 random(21);
  for (int i = 0; i < 200; ++i) {
    const RandomRow row(900, random);
    const auto logits = random_values(900, random(), 2.0f);
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      const auto drawn = sampler_.sample_one(logits, row.params, mode);
      SampleRow forced = row.params;
      forced.forced_token = drawn.token_id;
      forced.num_candidates = 3;  // sampling nothing, it has none
      EXPECT_EQ(describe(sampler_.sample_one(logits, forced, mode)), describe(drawn));
    }
  }
}

TEST_P(DraftSampling, AForcedRowWithoutProcessorsReportsTheRawLogprobsInBothModes) {
  const auto logits = random_values(3000, 22, 2.0f);
  const SampleRow params = {.num_logprobs = 4, .want_logprobs = true, .forced_token = 17};
  EXPECT_EQ(describe(sampler_.sample_one(logits, params, LogprobsMode::kProcessed)),
            describe(sampler_.sample_one(logits, params, LogprobsMode::kRaw)));
}

INSTANTIATE_TEST_SUITE_P(Isas, DraftSampling, ::testing::ValuesIn(testing::supported_isas()),
                         [](const auto& info) { return std::string(cpu::name_of(info.param)); });

}  // namespace
}  // namespace specdec
