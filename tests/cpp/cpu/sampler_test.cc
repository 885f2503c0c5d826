// The sampler's candidates, its reports and its handling of bad rows, on every instruction set.
#include "cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "testing/allocation_count.h"
#include "testing/cpu_isas.h"
#include "testing/few_shapes.h"
#include "testing/oracle/sampler.h"
#include "testing/sampler_harness.h"
#include "testing/sampler_rows.h"
#include "testing/values.h"

namespace specdec {
namespace {

using cpu::Isa;
using testing::describe;
using testing::random_values;
using testing::RandomRow;
using testing::reported_as_kept;
using testing::SamplerHarness;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<bool> kept_by_reference(const std::vector<float>& logits, const SampleRow& params) {
  const auto exact = reference::distribution(logits, params);
  std::vector<bool> kept;
  for (const double x : exact.logits) kept.push_back(x > -INFINITY);
  return kept;
}

bool contains(const std::vector<bool>& outer, const std::vector<bool>& inner) {
  for (size_t i = 0; i < outer.size(); ++i) {
    if (inner[i] && !outer[i]) return false;
  }
  return true;
}

// With ties: logits in steps of 1/8, as narrow dtypes make them.
std::vector<float> stepped(std::vector<float> logits) {
  for (float& x : logits) x = std::round(x * 8) / 8;
  return logits;
}

class Sampling : public ::testing::TestWithParam<Isa> {
 protected:
  SamplerHarness sampler_{GetParam()};
};

TEST_P(Sampling, KeepsTheTokensTheReferenceKeeps) {
  std::mt19937 random(1);
  for (const auto& [vocab_size, num_rows] :
       {std::pair{1, 20}, {2, 50}, {17, 200}, {1000, 60}, {50000, 16}}) {
    for (int i = 0; i < num_rows; ++i) {
      const RandomRow row(vocab_size, random);
      std::vector<float> logits = random_values(vocab_size, random(), i % 4 == 3 ? 0.3f : 3.0f);
      if (i % 2 == 0) logits = stepped(logits);
      const auto result = sampler_.sample_one(logits, row.params, LogprobsMode::kProcessed);
      const auto kept = reported_as_kept(result, logits.size());
      // Where top_p ends to within rounding, either neighbour is right.
      SampleRow less = row.params, more = row.params;
      if (row.params.top_p < 1.0f) {
        less.top_p -= 2e-6f;
        more.top_p += 2e-6f;
      }
      const auto least = kept_by_reference(logits, less);
      const auto most = kept_by_reference(logits, more);
      ASSERT_TRUE(contains(kept, least)) << "row " << i << " of vocabulary " << vocab_size;
      ASSERT_TRUE(contains(most, kept)) << "row " << i << " of vocabulary " << vocab_size;
      ASSERT_TRUE(kept[result.token_id] || std::count(kept.begin(), kept.end(), true) == 0);
    }
  }
}

TEST_P(Sampling, TiesAreCutByTopPTowardTheLowerId) {
  const std::vector<float> logits = {1, 3, 2, 2, 3, 2, 2, 1};
  SampleRow params = {.top_p = 0.72f, .num_logprobs = -1, .want_logprobs = true};
  // Weights e^2, e, 1 in units of e: 2 x 7.389, 4 x 2.718, 2 x 1 of 27.65: both 3s and two of the
  // 2s.
  const auto result = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
  const std::vector<bool> expected = {false, true, true, true, true, false, false, false};
  EXPECT_EQ(reported_as_kept(result, 8), expected);
}

TEST_P(Sampling, TopKKeepsAllThatTieWithTheLast) {
  const std::vector<float> logits = {1, 3, 2, 2, 3, 2, 2, 1};
  SampleRow params = {.top_k = 3, .num_logprobs = -1, .want_logprobs = true};
  const auto result = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
  const std::vector<bool> expected = {false, true, true, true, true, true, true, false};
  EXPECT_EQ(reported_as_kept(result, 8), expected);
}

TEST_P(Sampling, EqualLogitsOfAWholeVocabularyAreCutExactly) {
  const std::vector<float> logits(20000, 0.5f);
  SampleRow params = {.top_p = 0.25f, .num_logprobs = -1, .want_logprobs = true};
  const auto kept =
      reported_as_kept(sampler_.sample_one(logits, params, LogprobsMode::kProcessed), 20000);
  EXPECT_NEAR(std::count(kept.begin(), kept.end(), true), 5000, 1);
  EXPECT_TRUE(std::is_sorted(kept.rbegin(), kept.rend()));
}

TEST_P(Sampling, TiedTokensCutByTopPAreNeverDrawn) {
  // Few kept tokens are drawn from a list, many by a pass over the row.
  for (const float top_p : {0.0526f, 0.2526f, 0.7526f}) {
    const int num_kept = static_cast<int>(top_p * 400) + 1;
    std::vector<bool> drawn(400, false);
    // 12 for each kept token: one seed in 500 would leave one of them out.
    const int64_t num_draws = testing::few_shapes() ? 12 * num_kept : 12000;
    for (int64_t position = 0; position < num_draws; ++position) {
      const SampleRow params = {.top_p = top_p, .seed = 4, .position = position};
      drawn[sampler_.sample_one(std::vector<float>(400, 0.5f), params).token_id] = true;
    }
    for (int token = 0; token < 400; ++token) ASSERT_EQ(drawn[token], token < num_kept) << token;
  }
}

TEST_P(Sampling, GreedyTakesTheFirstMaximumWhereverItStands) {
  for (const int vocab_size : {1, 2, 15, 64, 65, 4096, 4097, 10007}) {
    for (const int token : {0, 1, vocab_size / 2, vocab_size - 2, vocab_size - 1}) {
      if (token < 0 || token >= vocab_size) continue;
      std::vector<float> logits = random_values(vocab_size, 3);
      for (int i = token; i < vocab_size; i += 40) logits[i] = 9.0f;
      EXPECT_EQ(sampler_.sample_one(logits, {.temperature = 0}).token_id, token);
    }
  }
}

TEST_P(Sampling, DrawsWhatTheReferenceDraws) {
  std::mt19937 random(5);
  int num_rows = 0, num_equal = 0;
  for (const int vocab_size : {1, 2, 17, 63, 1000, 5000}) {
    for (int i = 0; i < 150; ++i) {
      const RandomRow row(vocab_size, random);
      const auto logits = random_values(vocab_size, random(), 2.5f);
      const auto exact = reference::distribution(logits, row.params);
      num_equal +=
          sampler_.sample_one(logits, row.params).token_id == reference::draw(exact, row.params);
      ++num_rows;
    }
  }
  // Two perturbed values may be equal in float; that is rare.
  EXPECT_GE(num_equal, num_rows - 1);
}

TEST_P(Sampling, TheDrawIsTheSameOverAListAndOverTheRow) {
  const int vocab_size = 3001;
  const auto logits = random_values(vocab_size, 6, 2.0f);
  std::vector<int32_t> tokens(vocab_size);
  std::iota(tokens.begin(), tokens.end(), 0);
  const cpu::DrawCutoff all = {-kInf, vocab_size};
  const int64_t num_draws = testing::few_shapes() ? 300 : 2000;
  for (int64_t position = 0; position < num_draws; ++position) {
    const cpu::DrawNoise noise = {9, position, static_cast<uint32_t>(position % 3)};
    constexpr int kNumBest = 5;
    cpu::RowMaximum row[kNumBest], list[kNumBest];
    sampler_.kernels().draw(logits.data(), 1.0f, vocab_size, all, noise, row, kNumBest);
    sampler_.kernels().draw_listed(tokens.data(), logits.data(), vocab_size, noise, list, kNumBest);
    for (int i = 0; i < kNumBest; ++i) {
      ASSERT_EQ(row[i].index, list[i].index);
      ASSERT_EQ(row[i].value, list[i].value);
    }
  }
}

TEST_P(Sampling, AskingForLogprobsNeverChangesTheToken) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const RandomRow row(700, random);
    const auto logits = random_values(700, random(), 2.0f);
    SampleRow plain = row.params;
    plain.want_logprobs = false;
    const int32_t token = sampler_.sample_one(logits, plain).token_id;
    EXPECT_EQ(sampler_.sample_one(logits, row.params).token_id, token);
    EXPECT_EQ(sampler_.sample_one(logits, row.params, LogprobsMode::kProcessed).token_id, token);
  }
}

TEST_P(Sampling, MaskingOtherTokensKeepsADrawnToken) {
  const auto logits = random_values(500, 8);
  for (int64_t position = 0; position < 500; ++position) {
    const int32_t token = sampler_.sample_one(logits, {.seed = 2, .position = position}).token_id;
    std::vector<int32_t> banned;
    for (int32_t id = static_cast<int32_t>(position % 3); id < 500; id += 3) {
      if (id != token) banned.push_back(id);
    }
    const SampleRow masked = {.banned_token_ids = banned, .seed = 2, .position = position};
    ASSERT_EQ(sampler_.sample_one(logits, masked).token_id, token);
  }
}

// By token.
void expect_entries(const SampleResult& result, const std::vector<double>& expected) {
  for (const Logprob& entry : result.logprobs) {
    const double x = expected[entry.token_id];
    if (x == -INFINITY) {
      ASSERT_EQ(entry.logprob, -kInf);
    } else {
      ASSERT_NEAR(entry.logprob, x, 1e-6 * std::max(1.0, std::abs(x)));
    }
  }
}

TEST_P(Sampling, LogprobsMatchDoublePrecision) {
  std::mt19937 random(9);
  for (const int vocab_size : {1, 17, 1000, 50000}) {
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      const RandomRow row(vocab_size, random);
      SampleRow params = row.params;
      params.top_p = 1.0f;  // its boundary is looked at elsewhere
      const auto logits = random_values(vocab_size, random(), 4.0f);
      const auto exact = reference::distribution(logits, params);
      const auto& expected =
          mode == LogprobsMode::kRaw ? exact.raw_logprobs : exact.processed_logprobs;
      const auto result = sampler_.sample_one(logits, params, mode);
      ASSERT_EQ(result.logprobs.size(), static_cast<size_t>(vocab_size) + 1);
      expect_entries(result, expected);
    }
  }
}

// Raw logits are those given, whatever processors the row has.
TEST_P(Sampling, LogitsMatchDoublePrecision) {
  std::mt19937 random(10);
  for (const int vocab_size : {1, 17, 1000, 50000}) {
    const RandomRow row(vocab_size, random);
    SampleRow params = row.params;
    params.top_p = 1.0f;
    std::vector<float> logits = random_values(vocab_size, random(), 4.0f);
    logits[0] = vocab_size > 1 ? kNan : 1.0f;
    const auto exact = reference::distribution(logits, params);
    const auto raw = sampler_.sample_one(logits, params, LogprobsMode::kRawLogits);
    const auto processed = sampler_.sample_one(logits, params, LogprobsMode::kProcessedLogits);
    ASSERT_EQ(raw.logprobs.size(), static_cast<size_t>(vocab_size) + 1);
    ASSERT_EQ(processed.logprobs.size(), raw.logprobs.size());
    for (const Logprob& entry : raw.logprobs) {
      const float x = logits[entry.token_id];
      ASSERT_EQ(entry.logprob, std::isnan(x) ? -kInf : x);
    }
    expect_entries(processed, exact.logits);
    const auto logprobs = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
    for (size_t i = 0; i < processed.logprobs.size(); ++i) {
      ASSERT_EQ(processed.logprobs[i].token_id, logprobs.logprobs[i].token_id);
      ASSERT_EQ(processed.logprobs[i].rank, logprobs.logprobs[i].rank);
    }
  }
}

// Given logits replace the row's own for processing; raw modes still report the row's own.
TEST_P(Sampling, GivenLogitsAreProcessedInsteadOfTheRows) {
  std::mt19937 random(11);
  for (const int vocab_size : {1, 17, 1000}) {
    for (int i = 0; i < 12; ++i) {
      const RandomRow row(vocab_size, random);
      SampleRow params = row.params;
      if (i % 3 == 0) params.temperature = 0.0f;
      const auto logits = random_values(vocab_size, random(), 3.0f);
      const auto given = random_values(vocab_size, random(), 3.0f);
      const auto expected = sampler_.sample_one(given, params, LogprobsMode::kProcessed);
      params.given_logits = given.data();
      const auto processed = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
      EXPECT_EQ(describe(processed), describe(expected));
      const auto raw = sampler_.sample_one(logits, params, LogprobsMode::kRaw);
      EXPECT_EQ(raw.token_id, expected.token_id);
      const SampleRow known = {
          .num_logprobs = -1, .want_logprobs = true, .forced_token = expected.token_id};
      EXPECT_EQ(describe(raw), describe(sampler_.sample_one(logits, known)));
    }
  }
}

TEST_P(Sampling, RanksAndTopTokensMatchBruteForce) {
  for (const int vocab_size : {1, 3, 64, 1000, 20000}) {
    for (const bool ties : {false, true}) {
      auto logits = random_values(vocab_size, 10, 2.0f);
      if (ties) logits = stepped(logits);
      std::vector<int32_t> order(vocab_size);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      for (const int num_top : {0, 1, 5, 20, 400}) {
        const SampleRow params = {
            .position = num_top, .num_logprobs = num_top, .want_logprobs = true};
        const auto result = sampler_.sample_one(logits, params);
        const int reported = std::min(num_top, vocab_size);
        ASSERT_EQ(result.logprobs.size(), static_cast<size_t>(reported) + 1);
        const Logprob& chosen = result.logprobs[0];
        EXPECT_EQ(chosen.token_id, result.token_id);
        EXPECT_EQ(chosen.rank, std::count_if(logits.begin(), logits.end(), [&](float x) {
                    return x >= logits[chosen.token_id];
                  }));
        for (int i = 0; i < reported; ++i) {
          ASSERT_EQ(result.logprobs[i + 1].token_id, order[i]);
          ASSERT_EQ(result.logprobs[i + 1].rank, i + 1);
        }
      }
    }
  }
}

TEST_P(Sampling, ProcessedTopTokensFillUpWithMaskedOnesById) {
  const std::vector<float> logits = {1, 5, 2, 4, 3};
  const SampleRow params = {.top_k = 2, .num_logprobs = 4, .want_logprobs = true};
  const auto result = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
  std::vector<int32_t> ids;
  for (const Logprob& entry : result.logprobs) ids.push_back(entry.token_id);
  EXPECT_EQ(std::vector<int32_t>(ids.begin() + 1, ids.end()), (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(result.logprobs[3].logprob, -kInf);
}

TEST_P(Sampling, GreedyProcessedLogprobsLeaveTheTemperatureOut) {
  const auto logits = random_values(300, 11, 2.0f);
  const std::vector<std::pair<int32_t, float>> bias = {{7, 2.5f}};
  const SampleRow params = {.temperature = 0.0f,
                            .top_k = 3,
                            .logit_bias = bias,
                            .num_logprobs = 300,
                            .want_logprobs = true};
  const auto exact = reference::distribution(logits, params);
  const auto result = sampler_.sample_one(logits, params, LogprobsMode::kProcessed);
  std::vector<float> biased = logits;
  biased[7] += 2.5f;
  double sum = 0.0;
  for (const float x : biased) sum += std::exp(static_cast<double>(x));
  for (const Logprob& entry : result.logprobs) {
    EXPECT_NEAR(entry.logprob, biased[entry.token_id] - std::log(sum), 1e-5);
  }
}

TEST_P(Sampling, BadLogitsNeverLeaveTheVocabularyOrWinOverGoodOnes) {
  std::vector<SampleRow> variants = {{.temperature = 0.0f},
                                     {},
                                     {.temperature = 0.6f, .top_k = 4},
                                     {.top_p = 0.5f},
                                     {.min_p = 0.3f},
                                     {.temperature = 1e-5f, .top_k = 50, .top_p = 0.9f}};
  for (const int vocab_size : {1, 5, 64, 200, 5000}) {
    for (SampleRow params : variants) {
      params.want_logprobs = true;
      params.num_logprobs = 3;
      for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
        const std::vector<float> nans(vocab_size, kNan), nothing(vocab_size, -kInf);
        EXPECT_EQ(sampler_.sample_one(nans, params, mode).token_id, 0);
        const auto result = sampler_.sample_one(nothing, params, mode);
        EXPECT_EQ(result.token_id, 0);
        EXPECT_EQ(result.logprobs[0].logprob, -kInf);
        std::vector<float> one_good = nans;
        one_good[vocab_size / 2] = -50.0f;
        const auto good = sampler_.sample_one(one_good, params, mode);
        EXPECT_EQ(good.token_id, vocab_size / 2);
        EXPECT_EQ(good.logprobs[0].logprob, 0.0f);
        EXPECT_EQ(good.logprobs[0].rank, 1);
        std::vector<float> infinite = random_values(vocab_size, 13);
        infinite[vocab_size - 1] = kInf;
        EXPECT_EQ(sampler_.sample_one(infinite, params, mode).token_id, vocab_size - 1);
      }
    }
  }
}

TEST_P(Sampling, MasksThatLeaveNothingGiveTheLowestPermittedToken) {
  const std::vector<int32_t> allowed = {3, 6, 7}, some = {3}, all = {7, 3, 6}, first = {0, 1};
  const std::vector<float> nans(10, kNan);
  const auto logits = random_values(10, 14);
  for (const float temperature : {0.0f, 1.0f}) {
    const auto token = [&](const std::vector<float>& x, std::span<const int32_t> allow,
                           std::span<const int32_t> ban) {
      return sampler_
          .sample_one(
              x, {.temperature = temperature, .allowed_token_ids = allow, .banned_token_ids = ban})
          .token_id;
    };
    EXPECT_EQ(token(nans, allowed, some), 6);
    EXPECT_EQ(token(logits, allowed, all), 3);
    EXPECT_EQ(token(nans, {}, first), 2);
  }
}

TEST_P(Sampling, ARowIsTheSameBitForBitInAnyBatchOnAnyThreads) {
  constexpr int kVocabSize = 9001;
  constexpr int kNumRows = 24;
  std::mt19937 random(15);
  std::vector<std::unique_ptr<RandomRow>> made;
  std::vector<SampleRow> rows;
  std::vector<float> logits;
  for (int i = 0; i < kNumRows; ++i) {
    made.push_back(std::make_unique<RandomRow>(kVocabSize, random));
    rows.push_back(made.back()->params);
    rows.back().num_logprobs = 7;
    rows.back().num_candidates = i % 5;
    rows.back().noise_stream = static_cast<uint32_t>(i % 3);
    const auto row = random_values(kVocabSize, random(), 3.0f);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  // Three out of four rows report their distribution, where `first_row` of the table begins.
  std::vector<float> distributions[3];
  for (auto& table : distributions) table.assign(kNumRows * kVocabSize, 0.0f);
  const auto reporting_to = [&](int table, int first_row, int count) {
    std::vector<SampleRow> result(rows.begin() + first_row, rows.begin() + first_row + count);
    for (int i = 0; i < count; ++i) {
      const int row = first_row + i;
      if (row % 4 != 3) result[i].distribution = distributions[table].data() + row * kVocabSize;
    }
    return result;
  };
  for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
    const auto together = sampler_.sample(logits, reporting_to(0, 0, kNumRows), mode);
    SamplerHarness threaded(GetParam(), 3);
    const auto in_threads = threaded.sample(logits, reporting_to(1, 0, kNumRows), mode);
    for (int i = 0; i < kNumRows; ++i) {
      const std::vector<float> row(logits.begin() + i * kVocabSize,
                                   logits.begin() + (i + 1) * kVocabSize);
      const std::string alone =
          describe(sampler_.sample_one(row, reporting_to(2, i, 1).front(), mode));
      EXPECT_EQ(describe(together[i]), alone);
      EXPECT_EQ(describe(in_threads[i]), alone);
    }
    EXPECT_EQ(distributions[0], distributions[2]);
    EXPECT_EQ(distributions[1], distributions[2]);
  }
}

TEST_P(Sampling, AllocatesNothingOnceWarm) {
  constexpr int kVocabSize = 20000;
  std::vector<SampleRow> rows = {{.temperature = 0.0f},
                                 {},
                                 {.temperature = 0.7f, .top_k = 50, .top_p = 0.9f},
                                 {.temperature = 1.3f, .top_p = 0.95f},
                                 {.min_p = 0.01f},
                                 {.num_logprobs = 5, .want_logprobs = true},
                                 {.temperature = 0.7f, .num_candidates = 8}};
  std::vector<float> logits = random_values(kVocabSize * static_cast<int>(rows.size()), 16, 2.0f);
  std::vector<SampleResult> results(rows.size());
  const SampleArgs args = {
      .logits = logits.data(), .rows = rows, .vocab_size = kVocabSize, .results = results};
  sampler_.run(args);
  const int64_t before = testing::num_allocations();
  for (int i = 0; i < 10; ++i) sampler_.run(args);
  EXPECT_EQ(testing::num_allocations(), before);
}

TEST_P(Sampling, InstructionSetsAgree) {
  std::mt19937 random(17);
  SamplerHarness generic(Isa::kGeneric);
  int num_different = 0;
  const int num_rows = testing::few_shapes() ? 100 : 400;
  for (int i = 0; i < num_rows; ++i) {
    const RandomRow row(3000, random);
    const auto logits = random_values(3000, random(), 2.0f);
    SampleRow greedy = row.params;
    greedy.temperature = 0.0f;
    EXPECT_EQ(sampler_.sample_one(logits, greedy).token_id,
              generic.sample_one(logits, greedy).token_id);
    num_different += sampler_.sample_one(logits, row.params).token_id !=
                     generic.sample_one(logits, row.params).token_id;
  }
  // Fused and separate roundings differ in the last bit of the noise.
  EXPECT_LE(num_different, 1);
}

INSTANTIATE_TEST_SUITE_P(Isas, Sampling, ::testing::ValuesIn(testing::supported_isas()),
                         [](const auto& info) { return std::string(cpu::name_of(info.param)); });

}  // namespace
}  // namespace specdec
