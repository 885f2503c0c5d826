// Logistic regression that learns from one outcome at a time. Pure.
#pragma once

#include <span>
#include <vector>

namespace specdec {

// A weight that is known up to a variance. Every outcome that involves the weight adds `drift` to
// the variance, so old outcomes fade.
struct UncertainWeight {
  double mean = 0;
  double variance = 0;
  double drift = 0;
};

// The log-odds of an outcome are the sum of weights times features. The weights have a Gaussian
// distribution. An outcome moves its mean to the mode of the posterior and shrinks its covariance
// by the curvature there: an extended Kalman filter with an iterated update.
class LogisticRegression {
 public:
  struct Feature {
    int weight = 0;
    double value = 1;
  };

  explicit LogisticRegression(std::span<const UncertainWeight> weights);
  // Sets the prior covariance of two weights.
  void set_covariance(int a, int b, double covariance);

  double log_odds(std::span<const Feature> features) const;
  // The variance of log_odds().
  double variance(std::span<const Feature> features) const;
  // `offset` is a further weight, with feature 1, which learns from the outcome, too.
  void record(std::span<const Feature> features, UncertainWeight& offset, bool outcome);

 private:
  int num_weights() const { return static_cast<int>(means_.size()); }

  std::vector<double> means_;
  std::vector<double> drifts_;
  std::vector<double> first_variances_;  // drift adds no more than this
  std::vector<double> covariance_;       // [num_weights, num_weights]
  std::vector<double> direction_;        // kept for its memory
};

}  // namespace specdec
