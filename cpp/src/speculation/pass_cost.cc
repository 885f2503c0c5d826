#include "speculation/pass_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace specdec {
namespace {

constexpr std::array<double, 27> kKnots = {1,  2,  3,  4,  5,   6,   7,   8,   9,
                                           10, 12, 14, 16, 18,  20,  24,  28,  32,
                                           40, 48, 64, 96, 128, 192, 256, 384, 512};
constexpr double kSlope = 0.02;          // prior: what another row adds, relative to one row
constexpr double kCurveVariance = 0.02;  // of the curve per unit of log(rows)
constexpr double kLevelDrift = 1e-4;     // variance of the level from pass to pass
constexpr double kMemory = 4000;         // passes after which the curve is back at the prior
constexpr double kNoise = 0.05;          // standard deviation of a measured pass
constexpr double kFirstNoise = 0.5;      // added for the first passes, which touch new memory
constexpr double kUnknown = 100.0;       // variance of the level before anything is known
constexpr double kAssumed = 0.25;        // variance of a level that was guessed
// Optimism: the cost of row counts that were hardly tried is taken this many standard deviations
// below its mean, so that they get tried.
constexpr double kOptimism = 0.5;
constexpr double kOutlier = 3.0;  // standard deviations at which an error is clipped

}  // namespace

PassCost::PassCost()
    : size_(static_cast<int>(kKnots.size()) + 1),
      state_(size_, 0.0),
      prior_(kKnots.size()),
      covariance_(static_cast<size_t>(size_) * size_, 0.0),
      prior_variance_(kKnots.size()),
      curve_(kKnots.size()) {
  const int level = size_ - 1;
  for (int i = 0; i < level; ++i) {
    prior_[i] = std::log(1.0 + kSlope * (kKnots[i] - 1.0));
    prior_variance_[i] = kCurveVariance * std::log(kKnots[i]);
    state_[i] = prior_[i];
    for (int j = 0; j <= i; ++j) covariance(i, j) = covariance(j, i) = prior_variance_[j];
  }
  covariance(level, level) = kUnknown;
  refresh_curve();
}

void PassCost::assume(double seconds) {
  SPECDEC_CHECK(seconds > 0);
  if (num_recorded_ > 0) return;
  state_.back() = std::log(seconds);
  covariance(size_ - 1, size_ - 1) = kAssumed;
}

PassCost::Place PassCost::place_of(double num_rows) {
  if (num_rows <= kKnots.front()) return {};
  const int last = static_cast<int>(kKnots.size()) - 1;
  if (num_rows >= kKnots.back()) return {.lower = last, .share = 0.0};
  const auto next = std::upper_bound(kKnots.begin(), kKnots.end(), num_rows);
  const int lower = static_cast<int>(next - kKnots.begin()) - 1;
  return {.lower = lower,
          .share = std::log(num_rows / kKnots[lower]) / std::log(*next / kKnots[lower])};
}

double PassCost::curve_at(const Place& place, const std::vector<double>& curve) const {
  if (place.share == 0.0) return curve[place.lower];
  return curve[place.lower] + place.share * (curve[place.lower + 1] - curve[place.lower]);
}

double PassCost::seconds(int num_rows) const {
  const double beyond = std::max(1.0, num_rows / kKnots.back());
  return std::exp(state_.back() + curve_at(place_of(num_rows), curve_)) * beyond;
}

void PassCost::record(int num_rows, double seconds) {
  if (!(seconds > 0) || num_rows < 1) return;
  ++num_recorded_;
  relax();
  const double beyond = std::max(1.0, num_rows / kKnots.back());
  correct(place_of(num_rows), std::log(seconds / beyond));
  refresh_curve();
}

// Between two passes the level drifts, and the curve forgets towards its prior.
void PassCost::relax() {
  const double keep = std::exp(-1.0 / kMemory);
  const int level = size_ - 1;
  for (int i = 0; i < level; ++i) {
    state_[i] = prior_[i] + keep * (state_[i] - prior_[i]);
    for (int j = 0; j <= i; ++j) {
      covariance(i, j) = covariance(j, i) =
          keep * keep * covariance(i, j) + (1.0 - keep * keep) * prior_variance_[j];
    }
    covariance(i, level) = covariance(level, i) = keep * covariance(i, level);
  }
  covariance(level, level) += kLevelDrift;
}

void PassCost::correct(const Place& place, double log_seconds) {
  const int level = size_ - 1;
  std::array<double, kKnots.size() + 1> gain;  // covariance with what is measured
  for (int i = 0; i < size_; ++i) {
    gain[i] = covariance(i, level) + (1.0 - place.share) * covariance(i, place.lower);
    if (place.share > 0) gain[i] += place.share * covariance(i, place.lower + 1);
  }
  double variance = gain[level] + (1.0 - place.share) * gain[place.lower];
  if (place.share > 0) variance += place.share * gain[place.lower + 1];
  const auto count = static_cast<double>(num_recorded_);
  const double noise = kNoise + kFirstNoise / (count * count);
  variance += noise * noise;

  const double bound = kOutlier * std::sqrt(variance);
  const double error = log_seconds - state_[level] - curve_at(place, state_);
  // An outlier moves the state only as far as the bound does, and its variance hardly shrinks.
  const double weight = std::min(1.0, bound / std::abs(error));
  for (int i = 0; i < size_; ++i) state_[i] += weight * error * gain[i] / variance;
  for (int i = 0; i < size_; ++i) {
    for (int j = 0; j < size_; ++j) {
      covariance(i, j) -= weight * weight * gain[i] * gain[j] / variance;
    }
  }
}

void PassCost::refresh_curve() {
  double highest = state_[0];
  for (size_t i = 0; i < curve_.size(); ++i) {
    const double deviation = std::sqrt(covariance(static_cast<int>(i), static_cast<int>(i)));
    highest = std::max(highest, state_[i] - kOptimism * deviation);
    curve_[i] = highest;
  }
}

}  // namespace specdec
