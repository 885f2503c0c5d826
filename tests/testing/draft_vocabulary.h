// A draft head that scores some of the target's tokens, against one that scores all and gives the
// others -inf.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "testing/sampler_harness.h"
#include "testing/sampler_rows.h"

namespace specdec::testing {

// Both draw the same tokens and report the same, bit for bit, for random rows.
inline void expect_draws_over_all_tokens(RowSampler& sampler, int num_columns,
                                         int target_vocab_size, LogprobsMode mode,
                                         std::mt19937& random) {
  constexpr int kNumRows = 40;
  std::vector<int32_t> token_ids(target_vocab_size);
  std::iota(token_ids.begin(), token_ids.end(), 0);
  std::shuffle(token_ids.begin(), token_ids.end(), random);
  token_ids.resize(num_columns);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<std::unique_ptr<RandomRow>> storage;
  std::vector<std::vector<float>> distributions(kNumRows);
  std::vector<SampleRow> rows;
  std::vector<float> logits, full_logits;
  for (int i = 0; i < kNumRows; ++i) {
    storage.push_back(std::make_unique<RandomRow>(target_vocab_size, random));
    SampleRow row = storage.back()->params;
    row.num_logprobs = 5;
    row.num_candidates = static_cast<int>(random() % 4);
    if (i % 4 == 0) row.temperature = 0.0f;
    if (i % 5 == 0) row.allowed_token_ids = {token_ids.data(), 1};
    distributions[i].resize(target_vocab_size);
    row.distribution = distributions[i].data();
    rows.push_back(row);
    full_logits.resize(full_logits.size() + target_vocab_size, -INFINITY);
    for (int column = 0; column < num_columns; ++column) {
      logits.push_back(normal(random));
      full_logits[int64_t{i} * target_vocab_size + token_ids[column]] = logits.back();
    }
  }
  const std::vector<SampleResult> expected = sampler.sample(full_logits, rows, mode);
  const std::vector<std::vector<float>> expected_distributions = distributions;
  for (std::vector<float>& distribution : distributions) std::ranges::fill(distribution, NAN);
  std::vector<SampleResult> results(rows.size());
  sampler.run({.logits = logits.data(),
               .rows = rows,
               .vocab_size = num_columns,
               .token_ids = token_ids.data(),
               .target_vocab_size = target_vocab_size,
               .logprobs_mode = mode,
               .results = results});
  for (int i = 0; i < kNumRows; ++i) {
    ASSERT_EQ(describe(results[i]), describe(expected[i])) << "row " << i;
  }
  ASSERT_EQ(distributions, expected_distributions);
}

}  // namespace specdec::testing
