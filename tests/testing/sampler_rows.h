// Random parameters for the sampler, and results in comparable form.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/op_args.h"

namespace specdec::testing {

// Random parameters, each off half the time; the lists live as long as this does.
struct RandomRow {
  RandomRow(int vocab_size, std::mt19937& random) {
    const auto coin = [&] { return random() % 2 == 0; };
    const auto uniform = [&](float low, float high) {
      return std::uniform_real_distribution<float>(low, high)(random);
    };
    const auto token = [&] { return static_cast<int32_t>(random() % vocab_size); };
    if (coin()) params.temperature = uniform(0.2f, 2.0f);
    if (coin()) params.top_k = 1 + static_cast<int>(random() % std::min(vocab_size + 2, 3000));
    if (coin()) params.top_p = uniform(0.05f, 1.0f);
    if (coin()) params.min_p = std::pow(10.0f, uniform(-4.0f, 0.0f));
    if (coin()) {
      for (int i = 0; i < 20; ++i) banned.push_back(token());
    }
    if (coin()) {
      for (int i = 0; i < 5; ++i) bias.emplace_back(token(), uniform(-4.0f, 4.0f));
    }
    if (coin()) {
      params.repetition_penalty = uniform(0.7f, 1.6f);
      params.frequency_penalty = uniform(-0.5f, 0.5f);
      params.presence_penalty = uniform(-0.5f, 0.5f);
      std::vector<int32_t> seen(std::min(vocab_size, 60));
      for (int32_t& id : seen) id = token();
      std::sort(seen.begin(), seen.end());
      seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
      for (const int32_t id : seen) counts.push_back({id, static_cast<int32_t>(random() % 4)});
    }
    if (coin()) {
      // Sometimes without the last words, whose tokens are forbidden then.
      mask.resize((vocab_size + 31) / 32 - (vocab_size > 64 && coin() ? 1 : 0));
      for (uint32_t& word : mask) word = random() % 3 == 0 ? ~0u : random() & random();
    }
    params.seed = random();
    params.position = random() % 100000;
    params.want_logprobs = true;
    params.num_logprobs = -1;
    params.allowed_mask = mask;
    params.banned_token_ids = banned;
    params.logit_bias = bias;
    params.counts = counts;
  }
  RandomRow(const RandomRow&) = delete;

  std::vector<uint32_t> mask;
  std::vector<int32_t> banned;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<TokenCount> counts;
  SampleRow params;
};

// Which tokens a row may draw, by its processed log-probabilities (all must be reported).
inline std::vector<bool> reported_as_kept(const SampleResult& result, size_t vocab_size) {
  std::vector<bool> kept(vocab_size, false);
  for (size_t i = 1; i < result.logprobs.size(); ++i) {
    kept[result.logprobs[i].token_id] = result.logprobs[i].logprob > -INFINITY;
  }
  return kept;
}

// A result as text, in every bit except for its distribution.
inline std::string describe(const SampleResult& result) {
  std::string text = std::to_string(result.token_id);
  char bytes[64];
  for (const Logprob& entry : result.logprobs) {
    std::snprintf(bytes, sizeof(bytes), " %d:%a:%d", entry.token_id,
                  static_cast<double>(entry.logprob), entry.rank);
    text += bytes;
  }
  for (const Candidate& entry : result.candidates) {
    std::snprintf(bytes, sizeof(bytes), " %d~%a", entry.token_id,
                  static_cast<double>(entry.probability));
    text += bytes;
  }
  return text;
}

}  // namespace specdec::testing
