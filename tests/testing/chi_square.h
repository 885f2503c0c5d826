// Pearson's chi-square test of drawn counts against exact probabilities.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace specdec::testing {

struct ChiSquareResult {
  double statistic = 0.0;
  int degrees_of_freedom = 0;
  double p_value = 1.0;
};

// Regularised upper incomplete gamma function Q(a, x), a > 0, x >= 0: series for P below the mean,
// Lentz's continued fraction for Q above it (Abramowitz & Stegun 6.5.29 and 6.5.31).
inline double upper_gamma_regularized(double a, double x) {
  if (x <= 0.0) return 1.0;
  constexpr double kPrecision = 1e-15;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1.0) {
    double term = 1.0 / a;
    double sum = term;
    for (double n = a + 1.0; term > sum * kPrecision; n += 1.0) {
      term *= x / n;
      sum += term;
    }
    return 1.0 - front * sum;
  }
  double b = x + 1.0 - a;
  double c = std::numeric_limits<double>::max();
  double d = 1.0 / b;
  double fraction = d;
  for (int i = 1; i < 10000; ++i) {
    const double numerator = -i * (i - a);
    b += 2.0;
    d = 1.0 / (numerator * d + b);
    c = b + numerator / c;
    fraction *= c * d;
    if (std::abs(c * d - 1.0) < kPrecision) break;
  }
  return front * fraction;
}

inline double chi_square_p_value(double statistic, int degrees_of_freedom) {
  return degrees_of_freedom == 0 ? 1.0
                                 : upper_gamma_regularized(degrees_of_freedom / 2.0, statistic / 2);
}

// counts[i]: how often outcome i was drawn; probs[i]: its exact probability (they sum to 1).
// Outcomes expected less than five times are pooled. An outcome of probability 0 that was drawn
// refutes the distribution outright (p-value 0).
inline ChiSquareResult chi_square_test(std::span<const int64_t> counts,
                                       std::span<const double> probs) {
  constexpr double kLeastExpected = 5.0;
  int64_t num_draws = 0;
  for (const int64_t count : counts) num_draws += count;
  ChiSquareResult result;
  int num_cells = 0;
  double pooled_count = 0.0;
  double pooled_expected = 0.0;
  const auto add_cell = [&](double count, double expected) {
    result.statistic += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (size_t i = 0; i < probs.size(); ++i) {
    const double expected = probs[i] * static_cast<double>(num_draws);
    if (probs[i] == 0.0 && counts[i] > 0) {
      return {std::numeric_limits<double>::infinity(), 0, 0.0};
    }
    if (expected >= kLeastExpected) {
      add_cell(static_cast<double>(counts[i]), expected);
    } else {
      pooled_count += static_cast<double>(counts[i]);
      pooled_expected += expected;
    }
  }
  // A pool that should stay almost empty is left out, unless it is not almost empty.
  if (pooled_expected >= kLeastExpected || pooled_count > 20.0 + 4.0 * pooled_expected) {
    add_cell(pooled_count, pooled_expected);
  }
  result.degrees_of_freedom = num_cells > 0 ? num_cells - 1 : 0;
  result.p_value =
      num_cells > 1 ? chi_square_p_value(result.statistic, result.degrees_of_freedom) : 1.0;
  return result;
}

}  // namespace specdec::testing
