#include "speculation/logistic_regression.h"

#include <algorithm>
#include <cmath>

namespace specdec {
namespace {

struct Posterior {
  double mode = 0;
  double information = 0;  // curvature of the outcome's log likelihood at the mode
};

// The posterior of log-odds with a Gaussian prior after one outcome, by Newton's method.
Posterior posterior_of(double expected, double variance, bool outcome) {
  constexpr int kIterations = 6;
  // The mode is between the expected value and the longest step that one outcome can cause.
  double low = outcome ? expected : expected - variance;
  double high = outcome ? expected + variance : expected;
  Posterior posterior{.mode = expected};
  for (int i = 0; i < kIterations; ++i) {
    const double probability = 1.0 / (1.0 + std::exp(-posterior.mode));
    posterior.information = probability * (1.0 - probability);
    const double residual =
        posterior.mode - expected - variance * ((outcome ? 1.0 : 0.0) - probability);
    (residual < 0 ? low : high) = posterior.mode;
    const double next = posterior.mode - residual / (1.0 + variance * posterior.information);
    posterior.mode = next >= low && next <= high ? next : (low + high) / 2;
  }
  return posterior;
}

}  // namespace

LogisticRegression::LogisticRegression(std::span<const UncertainWeight> weights)
    : covariance_(weights.size() * weights.size(), 0.0), direction_(weights.size(), 0.0) {
  for (const UncertainWeight& weight : weights) {
    covariance_[means_.size() * (weights.size() + 1)] = weight.variance;
    means_.push_back(weight.mean);
    drifts_.push_back(weight.drift);
    first_variances_.push_back(weight.variance);
  }
}

void LogisticRegression::set_covariance(int a, int b, double covariance) {
  covariance_[a * num_weights() + b] = covariance;
  covariance_[b * num_weights() + a] = covariance;
}

double LogisticRegression::log_odds(std::span<const Feature> features) const {
  double sum = 0;
  for (const auto& [weight, value] : features) sum += means_[weight] * value;
  return sum;
}

double LogisticRegression::variance(std::span<const Feature> features) const {
  double sum = 0;
  for (const auto& [a, value_of_a] : features) {
    for (const auto& [b, value_of_b] : features) {
      sum += covariance_[a * num_weights() + b] * value_of_a * value_of_b;
    }
  }
  return sum;
}

void LogisticRegression::record(std::span<const Feature> features, UncertainWeight& offset,
                                bool outcome) {
  const int size = num_weights();
  for (const Feature& feature : features) {
    double& variance = covariance_[feature.weight * (size + 1)];
    variance = std::min(variance + drifts_[feature.weight], first_variances_[feature.weight]);
  }
  // The covariance of every weight with the log-odds, and the variance of the log-odds.
  std::ranges::fill(direction_, 0.0);
  for (const auto& [weight, value] : features) {
    for (int i = 0; i < size; ++i) direction_[i] += covariance_[weight * size + i] * value;
  }
  double variance = offset.variance;
  for (const auto& [weight, value] : features) variance += direction_[weight] * value;

  const double expected = log_odds(features) + offset.mean;
  const auto [mode, information] = posterior_of(expected, variance, outcome);
  const double step = (mode - expected) / variance;
  const double shrinkage = information / (1.0 + variance * information);
  for (int i = 0; i < size; ++i) {
    means_[i] += direction_[i] * step;
    for (int j = 0; j < size; ++j) {
      covariance_[i * size + j] -= direction_[i] * direction_[j] * shrinkage;
    }
  }
  offset.mean += offset.variance * step;
  offset.variance -= offset.variance * offset.variance * shrinkage;
}

}  // namespace specdec
