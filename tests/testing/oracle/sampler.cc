#include "testing/oracle/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/philox.h"

namespace specdec::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kMaxLogit = 1e30f;           // larger logits, +inf among them, count as this
constexpr float kGreedyTemperature = 1e-5f;  // lower temperatures mean greedy

std::vector<double> log_softmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> result(logits.size(), -kInfinity);
  if (max == -kInfinity) return result;
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x - max);
  for (size_t i = 0; i < logits.size(); ++i) result[i] = logits[i] - max - std::log(sum);
  return result;
}

bool is_masked(const SampleRow& params, size_t token) {
  const auto& mask = params.allowed_mask;
  return !mask.empty() && (token / 32 >= mask.size() || (mask[token / 32] >> token % 32) % 2 == 0);
}

void apply_masks_bias_penalties(const SampleRow& params, std::vector<double>& logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (is_masked(params, i)) logits[i] = -kInfinity;
  }
  for (size_t i = 0; i < logits.size() && !params.allowed_token_ids.empty(); ++i) {
    const auto& allowed = params.allowed_token_ids;
    if (std::find(allowed.begin(), allowed.end(), static_cast<int32_t>(i)) == allowed.end()) {
      logits[i] = -kInfinity;
    }
  }
  for (const int32_t token : params.banned_token_ids) {
    logits[static_cast<size_t>(token)] = -kInfinity;
  }
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  for (const TokenCount& count : params.counts) {
    double& x = logits[static_cast<size_t>(count.token_id)];
    const double penalty = params.repetition_penalty;
    x = x > 0.0 ? x / penalty : x * penalty;
    x -= static_cast<double>(params.frequency_penalty) * count.output_count;
    if (count.output_count > 0) x -= params.presence_penalty;
  }
}

void apply_min_p(double min_p, std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  for (double& x : logits) {
    if (x - max < std::log(min_p)) x = -kInfinity;
  }
}

void apply_top_k(int top_k, std::vector<double>& logits) {
  std::vector<double> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double kth = sorted[static_cast<size_t>(top_k) - 1];
  for (double& x : logits) {
    if (x < kth) x = -kInfinity;
  }
}

void apply_top_p(double top_p, std::vector<double>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const std::vector<double> logprobs = log_softmax(logits);
  double mass = 0.0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (rank > 0 && mass >= top_p) logits[order[rank]] = -kInfinity;
    mass += std::exp(logprobs[order[rank]]);
  }
}

size_t fallback_token(const SampleRow& params, size_t vocab_size) {
  const auto is_in = [](std::span<const int32_t> tokens, size_t token) {
    return std::find(tokens.begin(), tokens.end(), static_cast<int32_t>(token)) != tokens.end();
  };
  const auto& allowed = params.allowed_token_ids;
  for (size_t i = 0; i < vocab_size; ++i) {
    if (is_masked(params, i) || (!allowed.empty() && !is_in(allowed, i))) continue;
    if (!is_in(params.banned_token_ids, i)) return i;
  }
  return allowed.empty() ? 0 : static_cast<size_t>(allowed.front());
}

}  // namespace

Distribution distribution(std::span<const float> logits, const SampleRow& params) {
  Distribution result;
  auto& x = result.logits;
  for (const float logit : logits) {
    x.push_back(std::isnan(logit) ? -kInfinity : std::min(logit, kMaxLogit));
  }
  result.raw_logprobs = log_softmax(x);
  apply_masks_bias_penalties(params, x);

  const bool greedy = params.temperature < kGreedyTemperature;
  const bool empty = *std::max_element(x.begin(), x.end()) == -kInfinity;
  if (!greedy && !empty) {
    for (double& value : x) value /= params.temperature;
    if (params.min_p > 0.0f) apply_min_p(params.min_p, x);
    if (params.top_k > 0 && static_cast<size_t>(params.top_k) < x.size()) {
      apply_top_k(params.top_k, x);
    }
    if (params.top_p < 1.0f) apply_top_p(params.top_p, x);
  }
  result.processed_logprobs = log_softmax(x);
  result.probs.assign(x.size(), 0.0);
  if (empty) {
    result.probs[fallback_token(params, x.size())] = 1.0;
  } else if (greedy) {
    const auto best = std::max_element(x.begin(), x.end()) - x.begin();
    result.probs[static_cast<size_t>(best)] = 1.0;
  } else {
    for (size_t i = 0; i < x.size(); ++i) result.probs[i] = std::exp(result.processed_logprobs[i]);
  }
  return result;
}

double noise(uint64_t seed, int64_t position, int32_t token, uint32_t stream) {
  const auto bits = static_cast<uint64_t>(position);
  const auto words =
      philox4x32_10({static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32),
                     static_cast<uint32_t>(token) / 4, stream},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double v = (words[static_cast<uint32_t>(token) % 4] + 0.5) * 0x1p-32;
  return -std::log(-std::log1p(-v));
}

int32_t draw(const Distribution& distribution, const SampleRow& params) {
  SampleRow one = params;
  one.num_candidates = 1;
  return candidates(distribution, one).front().token_id;
}

std::vector<Candidate> candidates(const Distribution& distribution, const SampleRow& params) {
  const bool greedy = params.temperature < kGreedyTemperature;
  std::vector<std::pair<double, Candidate>> order;
  for (size_t i = 0; i < distribution.probs.size(); ++i) {
    const double logprob = distribution.processed_logprobs[i];
    if (logprob == -kInfinity) continue;
    const auto token = static_cast<int32_t>(i);
    const double gumbel =
        greedy ? 0.0 : noise(params.seed, params.position, token, params.noise_stream);
    order.push_back({logprob + gumbel, {token, std::exp(logprob)}});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Candidate> result;
  for (const auto& [value, candidate] : order) {
    if (static_cast<int>(result.size()) == params.num_candidates) break;
    result.push_back(candidate);
  }
  if (result.empty() && params.num_candidates > 0) {
    const auto only = std::max_element(distribution.probs.begin(), distribution.probs.end());
    result.push_back({static_cast<int32_t>(only - distribution.probs.begin()), 1.0});
  }
  return result;
}

}  // namespace specdec::reference
