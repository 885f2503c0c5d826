// How long a pass over a number of rows takes, learned from measured passes. Pure: seconds are fed
// in.
#pragma once

#include <cstdint>
#include <vector>

namespace specdec {

// A Kalman filter over the logarithm of the seconds: a level, which drifts with the machine and the
// length of the contexts, and a curve over the rows, whose prior is a random walk along them. A
// measurement at one row count therefore says something about the counts near it, and a step that
// the operating system interrupted counts for little.
class PassCost {
 public:
  PassCost();

  // Takes `seconds` for a pass over one row until passes are recorded.
  void assume(double seconds);
  void record(int num_rows, double seconds);
  // False as long as seconds() is a guess.
  bool is_measured() const { return num_recorded_ >= kMinRecorded; }

  // Never falls with num_rows.
  double seconds(int num_rows) const;

 private:
  static constexpr int kMinRecorded = 2;

  // Where a number of rows lies: between knots `lower` and the next.
  struct Place {
    int lower = 0;
    double share = 0;  // of the next
  };
  static Place place_of(double num_rows);
  double curve_at(const Place& place, const std::vector<double>& curve) const;
  double& covariance(int i, int j) { return covariance_[i * size_ + j]; }
  void relax();
  void correct(const Place& place, double log_seconds);
  void refresh_curve();

  int size_ = 0;  // of the state: the curve's knots, then the level
  int64_t num_recorded_ = 0;
  std::vector<double> state_;           // [size_]
  std::vector<double> prior_;           // [size_ - 1]
  std::vector<double> covariance_;      // [size_, size_]
  std::vector<double> prior_variance_;  // [size_ - 1] of the knots: those of a random walk
  std::vector<double> curve_;           // [size_ - 1] the state's, made monotone
};

}  // namespace specdec
