// Expected values of products with quantised weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"

namespace specdec::testing {

// `out` [num_rows, num_n] against exact products of `rows` [num_rows, num_k], as the kernels take
// them, with `weights` [num_n, num_k], as stored. Per group of k a float sum is rounded a few times
// and so is its product with the scale; the terms (of a format with mins, both) are bounded by the
// group's largest weight. Beside that a sum may be rounded `num_roundings` times.
inline void expect_products(std::span<const float> out, std::span<const double> rows,
                            std::span<const float> weights, int64_t num_k, double num_roundings) {
  const int64_t num_n = std::ssize(weights) / num_k;
  ASSERT_EQ(std::ssize(out), std::ssize(rows) / num_k * num_n);
  for (int64_t i = 0; i < std::ssize(out); ++i) {
    const double* row = rows.data() + i / num_n * num_k;
    const float* weight = weights.data() + i % num_n * num_k;
    double expected = 0.0, magnitude = 0.0;
    for (int64_t begin = 0; begin < num_k; begin += kQuantGroup) {
      double inputs = 0.0, largest = 0.0;
      for (int64_t k = begin; k < std::min(num_k, begin + kQuantGroup); ++k) {
        expected += row[k] * weight[k];
        inputs += std::abs(row[k]);
        largest = std::max<double>(largest, std::abs(weight[k]));
      }
      magnitude += 3 * inputs * largest;
    }
    const double rounding = (num_k / kQuantGroup + num_roundings) * 0x1p-24;
    ASSERT_NEAR(out[i], expected, magnitude * rounding + 1e-30) << "at " << i;
  }
}

}  // namespace specdec::testing
