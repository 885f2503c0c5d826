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
constexpr double kSlope = 0.02;          // prior cost of another row, relative to one row
constexpr double kCurveVariance = 0.02;  // of the curve per unit of log(rows)
constexpr double kLevelDrift = 1e-4;     // variance of the level from pass to pass
constexpr double kMemory = 4000;         // passes after which the curve has returned to the prior
constexpr double kNoise = 0.05;          // standard deviation of a measured pass
constexpr double kFirstNoise = 0.5;      // added for the first passes, which touch new memory
constexpr double kUnknown = 100.0;       // variance of the level before any pass is known
constexpr double kAssumed = 0.25;        // variance of a level that was guessed
// Standard deviation of passes timed before any step, relative to each other: contexts and other
// programs change what a row adds.
constexpr double kTimedNoise = 0.1;
// Optimism: the cost of more rows than were ever tried is taken this many standard deviations below
// its mean, so that larger passes are tried.
constexpr double kOptimism = 0.5;
constexpr double kOutlier = 3.0;  // standard deviations at which an error is clipped

// Seconds by number of rows: straight lines through passes in rising order of rows, made monotonic.
class SecondsByRows {
 public:
  explicit SecondsByRows(std::span<const TimedPass> passes)
      : passes_(passes.begin(), passes.end()) {
    for (size_t i = 1; i < passes_.size(); ++i) {
      SPECDEC_CHECK_LT(passes_[i - 1].num_rows, passes_[i].num_rows);
      passes_[i].seconds = std::max(passes_[i].seconds, passes_[i - 1].seconds);
    }
  }
  double at(double num_rows) const {
    if (num_rows <= passes_.front().num_rows || passes_.size() == 1) return passes_.front().seconds;
    size_t next = 1;
    while (next + 1 < passes_.size() && passes_[next].num_rows < num_rows) ++next;
    const auto& [rows_before, seconds_before] = passes_[next - 1];
    const double slope =
        (passes_[next].seconds - seconds_before) / (passes_[next].num_rows - rows_before);
    return seconds_before + slope * (num_rows - rows_before);
  }

 private:
  std::vector<TimedPass> passes_;
};

}  // namespace

PassCost::PassCost()
    : size_(static_cast<int>(kKnots.size()) + 1),
      state_(size_, 0.0),
      prior_(kKnots.size()),
      covariance_(static_cast<size_t>(size_) * size_, 0.0),
      curve_(kKnots.size()) {
  const int level = size_ - 1;
  for (int i = 0; i < level; ++i) {
    prior_[i] = std::log(1.0 + kSlope * (kKnots[i] - 1.0));
    state_[i] = prior_[i];
    for (int j = 0; j <= i; ++j) {
      covariance(i, j) = covariance(j, i) = kCurveVariance * std::log(kKnots[j]);
    }
  }
  prior_covariance_ = covariance_;
  covariance(level, level) = kUnknown;
  refresh_curve();
}

void PassCost::assume(double seconds) {
  SPECDEC_CHECK(seconds > 0);
  if (num_recorded_ > 0) return;
  state_.back() = std::log(seconds);
  covariance(size_ - 1, size_ - 1) = kAssumed;
}

void PassCost::start_from(std::span<const TimedPass> passes) {
  if (num_recorded_ > 0 || passes.empty()) return;
  const SecondsByRows seconds(passes);
  const double one_row = seconds.at(1);
  const int level = size_ - 1;
  for (int i = 0; i < level; ++i) state_[i] = prior_[i] = std::log(seconds.at(kKnots[i]) / one_row);
  covariance_ = prior_covariance_;
  std::vector<double> gain(size_);
  for (const TimedPass& pass : passes) {
    const double variance =
        covariance_with({.point = point_at(pass.num_rows), .with_level = false}, gain);
    shrink_covariance(gain, 1.0 / (variance + kTimedNoise * kTimedNoise));
  }
  prior_covariance_ = covariance_;
  state_[level] = std::log(one_row);
  covariance(level, level) = kAssumed;
  most_rows_ = passes.back().num_rows;
  // The next recorded step adds the costs that timed passes leave out
  num_recorded_ = kMinRecorded - 1;
  refresh_curve();
}

PassCost::CurvePoint PassCost::point_at(double num_rows) {
  if (num_rows <= kKnots.front()) return {};
  const int last = static_cast<int>(kKnots.size()) - 1;
  if (num_rows >= kKnots.back()) return {.lower = last, .share = 0.0};
  const auto next = std::upper_bound(kKnots.begin(), kKnots.end(), num_rows);
  const int lower = static_cast<int>(next - kKnots.begin()) - 1;
  return {.lower = lower,
          .share = std::log(num_rows / kKnots[lower]) / std::log(*next / kKnots[lower])};
}

double PassCost::curve_at(const CurvePoint& point, const std::vector<double>& curve) const {
  if (point.share == 0.0) return curve[point.lower];
  return curve[point.lower] + point.share * (curve[point.lower + 1] - curve[point.lower]);
}

double PassCost::seconds(int num_rows) const {
  const double beyond = std::max(1.0, num_rows / kKnots.back());
  return std::exp(state_.back() + curve_at(point_at(num_rows), curve_)) * beyond;
}

void PassCost::record(int num_rows, double seconds) {
  if (!(seconds > 0) || num_rows < 1) return;
  ++num_recorded_;
  most_rows_ = std::max(most_rows_, num_rows);
  relax();
  const double beyond = std::max(1.0, num_rows / kKnots.back());
  correct(point_at(num_rows), std::log(seconds / beyond));
  refresh_curve();
}

// Between two passes the level drifts, and the curve returns towards its prior.
void PassCost::relax() {
  const double keep = std::exp(-1.0 / kMemory);
  const int level = size_ - 1;
  for (int i = 0; i < level; ++i) {
    state_[i] = prior_[i] + keep * (state_[i] - prior_[i]);
    for (int j = 0; j <= i; ++j) {
      covariance(i, j) = covariance(j, i) =
          keep * keep * covariance(i, j) + (1.0 - keep * keep) * prior_covariance_[i * size_ + j];
    }
    covariance(i, level) = covariance(level, i) = keep * covariance(i, level);
  }
  covariance(level, level) += kLevelDrift;
}

double PassCost::covariance_with(const Measured& measured, std::span<double> result) {
  const auto& [point, with_level] = measured;
  const int level = size_ - 1;
  for (int i = 0; i < size_; ++i) {
    result[i] = (1.0 - point.share) * covariance(i, point.lower);
    if (with_level) result[i] += covariance(i, level);
    if (point.share > 0) result[i] += point.share * covariance(i, point.lower + 1);
  }
  double variance = (1.0 - point.share) * result[point.lower];
  if (with_level) variance += result[level];
  if (point.share > 0) variance += point.share * result[point.lower + 1];
  return variance;
}

void PassCost::shrink_covariance(std::span<const double> gain, double share) {
  for (int i = 0; i < size_; ++i) {
    for (int j = 0; j < size_; ++j) covariance(i, j) -= share * gain[i] * gain[j];
  }
}

void PassCost::correct(const CurvePoint& point, double log_seconds) {
  const int level = size_ - 1;
  std::array<double, kKnots.size() + 1> gain;
  double variance = covariance_with({.point = point}, gain);
  const auto count = static_cast<double>(num_recorded_);
  const double noise = kNoise + kFirstNoise / (count * count);
  variance += noise * noise;

  const double bound = kOutlier * std::sqrt(variance);
  const double error = log_seconds - state_[level] - curve_at(point, state_);
  // An outlier moves the state only as far as the bound would, and its variance hardly shrinks.
  const double weight = std::min(1.0, bound / std::abs(error));
  for (int i = 0; i < size_; ++i) state_[i] += weight * error * gain[i] / variance;
  shrink_covariance(gain, weight * weight / variance);
}

void PassCost::refresh_curve() {
  double highest = state_[0];
  for (size_t i = 0; i < curve_.size(); ++i) {
    const double deviation = std::sqrt(covariance(static_cast<int>(i), static_cast<int>(i)));
    const double optimism = kKnots[i] > most_rows_ ? kOptimism * deviation : 0.0;
    highest = std::max(highest, state_[i] - optimism);
    curve_[i] = highest;
  }
}

}  // namespace specdec
