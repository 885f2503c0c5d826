// How long a pass over a number of rows takes, learned from measured passes. Pure: seconds are fed
// in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specdec {

// A pass of a model and its duration.
struct TimedPass {
  int num_rows = 0;
  double seconds = 0;
};

// A Kalman filter over the logarithm of the seconds: a level, which drifts with the machine and the
// length of the contexts, and a curve over the rows, whose prior is a random walk along the rows. A
// measurement at one row count therefore informs the counts near it, and a step that the operating
// system interrupted has little effect.
class PassCost {
 public:
  PassCost();

  // Assumes `seconds` for a pass over one row until passes are recorded.
  void assume(double seconds);
  // Sets the prior of the curve from timed passes over rising numbers of rows: straight lines
  // between them, extended beyond the last. Call before any pass is recorded.
  void start_from(std::span<const TimedPass> passes);
  void record(int num_rows, double seconds);
  // False as long as seconds() is a guess.
  bool is_measured() const { return num_recorded_ >= kMinRecorded; }

  // Never falls with num_rows.
  double seconds(int num_rows) const;

 private:
  static constexpr int kMinRecorded = 2;

  // A number of rows as a point on the curve: between knot `lower` and the next.
  struct CurvePoint {
    int lower = 0;
    double share = 0;  // weight of the next knot
  };
  static CurvePoint point_at(double num_rows);
  double curve_at(const CurvePoint& point, const std::vector<double>& curve) const;
  double& covariance(int i, int j) { return covariance_[i * size_ + j]; }
  // The quantity that a measurement observes: the curve at a point, with the level or relative to
  // it.
  struct Measured {
    CurvePoint point;
    bool with_level = true;
  };
  // The covariance of the state with the measured quantity. Returns that quantity's variance.
  double covariance_with(const Measured& measured, std::span<double> result);
  void shrink_covariance(std::span<const double> gain, double share);
  void relax();
  void correct(const CurvePoint& point, double log_seconds);
  void refresh_curve();

  int size_ = 0;  // size of the state: the curve's knots, then the level
  int64_t num_recorded_ = 0;
  int most_rows_ = 0;                     // largest measured pass
  std::vector<double> state_;             // [size_]
  std::vector<double> prior_;             // [size_ - 1]
  std::vector<double> covariance_;        // [size_, size_]
  std::vector<double> prior_covariance_;  // [size_, size_] of the knots: that of a random walk
  std::vector<double> curve_;             // [size_ - 1] the state's, made monotone
};

}  // namespace specdec
