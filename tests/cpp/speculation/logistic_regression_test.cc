#include "speculation/logistic_regression.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace specdec {
namespace {

using Feature = LogisticRegression::Feature;

double sigmoid(double log_odds) { return 1.0 / (1.0 + std::exp(-log_odds)); }

struct Sample {
  double x = 0;
  bool outcome = false;
};

std::vector<Sample> samples_of(double intercept, double slope, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const double x = normal(random);
    samples.push_back({x, uniform(random) < sigmoid(intercept + slope * x)});
  }
  return samples;
}

// Intercept and slope at the mode of the posterior of all samples together, by Newton's method. The
// prior has mean zero, variances `variance` and the covariance given.
std::array<double, 2> batch_mode(const std::vector<Sample>& samples, double variance,
                                 double covariance) {
  const double determinant = variance * variance - covariance * covariance;
  const double precision = variance / determinant;
  const double cross = -covariance / determinant;
  double a = 0, b = 0;
  for (int i = 0; i < 50; ++i) {
    double gradient_a = -precision * a - cross * b;
    double gradient_b = -precision * b - cross * a;
    double aa = precision, ab = cross, bb = precision;
    for (const auto& [x, outcome] : samples) {
      const double probability = sigmoid(a + b * x);
      const double information = probability * (1 - probability);
      gradient_a += outcome - probability;
      gradient_b += (outcome - probability) * x;
      aa += information;
      ab += information * x;
      bb += information * x * x;
    }
    const double scale = 1 / (aa * bb - ab * ab);
    a += scale * (bb * gradient_a - ab * gradient_b);
    b += scale * (aa * gradient_b - ab * gradient_a);
  }
  return {a, b};
}

LogisticRegression learned(const std::vector<Sample>& samples, double drift, double covariance) {
  const std::array<UncertainWeight, 2> weights = {
      {{.variance = 1, .drift = drift}, {.variance = 1, .drift = drift}}};
  LogisticRegression regression(weights);
  regression.set_covariance(0, 1, covariance);
  UncertainWeight nothing{.mean = 0, .variance = 0};
  for (const auto& [x, outcome] : samples) {
    regression.record(std::array<Feature, 2>{{{0, 1.0}, {1, x}}}, nothing, outcome);
  }
  return regression;
}

TEST(LogisticRegression, FindsWhatABatchRegressionFinds) {
  for (const double covariance : {0.0, 0.6}) {
    for (const auto& [intercept, slope] : {std::pair(0.3, 0.8), std::pair(-2.5, 1.5)}) {
      for (const int count : {3, 20, 400}) {
        const std::vector<Sample> samples = samples_of(intercept, slope, count, 5);
        const LogisticRegression regression = learned(samples, 0.0, covariance);
        const auto [a, b] = batch_mode(samples, 1.0, covariance);
        EXPECT_NEAR(regression.log_odds(std::array<Feature, 1>{{{0, 1.0}}}), a, 0.15) << count;
        EXPECT_NEAR(regression.log_odds(std::array<Feature, 1>{{{1, 1.0}}}), b, 0.15) << count;
      }
    }
  }
}

TEST(LogisticRegression, OneOutcomeMovesToTheModeExactly) {
  const std::vector<Sample> samples = {{.x = 0.7, .outcome = true}};
  const LogisticRegression regression = learned(samples, 0.0, 0.4);
  const auto [a, b] = batch_mode(samples, 1.0, 0.4);
  EXPECT_NEAR(regression.log_odds(std::array<Feature, 1>{{{0, 1.0}}}), a, 1e-9);
  EXPECT_NEAR(regression.log_odds(std::array<Feature, 1>{{{1, 1.0}}}), b, 1e-9);
}

TEST(LogisticRegression, DriftLetsOldOutcomesFade) {
  std::vector<Sample> samples = samples_of(2.0, 0.0, 2000, 6);
  const std::vector<Sample> later = samples_of(-2.0, 0.0, 200, 7);
  samples.insert(samples.end(), later.begin(), later.end());
  const std::array<Feature, 1> intercept = {{{0, 1.0}}};
  EXPECT_GT(learned(samples, 0.0, 0.0).log_odds(intercept), 0.8);
  EXPECT_LT(learned(samples, 1e-3, 0.0).log_odds(intercept), -1.2);
}

TEST(LogisticRegression, ASurpriseAfterLongCertaintyIsBounded) {
  const std::array<Feature, 1> features = {{{0, 1.0}}};
  const std::array<UncertainWeight, 1> weights = {{{.mean = 9, .variance = 8, .drift = 1e-3}}};
  LogisticRegression regression(weights);
  UncertainWeight nothing;
  regression.record(features, nothing, false);
  // The mode: (9 - z) / 8 = sigmoid(z).
  const double z = regression.log_odds(features);
  EXPECT_NEAR((9 - z) / 8, sigmoid(z), 1e-6);
}

TEST(LogisticRegression, AnOffsetSharesWhatIsLearned) {
  const std::array<Feature, 1> features = {{{0, 1.0}}};
  const std::array<UncertainWeight, 1> weights = {{{.variance = 1}}};
  LogisticRegression regression(weights);
  UncertainWeight offset{.mean = 0, .variance = 3};
  regression.record(features, offset, true);
  // In proportion to the variances, to the mode z of a variance of 4: z / 4 = 1 - sigmoid(z).
  const double z = regression.log_odds(features) + offset.mean;
  EXPECT_NEAR(z / 4, 1 - sigmoid(z), 1e-9);
  EXPECT_NEAR(offset.mean, 0.75 * z, 1e-9);
  const double information = sigmoid(z) * (1 - sigmoid(z));
  EXPECT_NEAR(offset.variance, 3 - 9 * information / (1 + 4 * information), 1e-9);
}

}  // namespace
}  // namespace specdec
