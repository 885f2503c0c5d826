// How the tensor cores of Hopper add, by MMA-Sim (github.com/microsoft/MMA-Sim).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "core/dtype.h"

namespace specdec::testing {

// d + sum of a[k] b[k] over a step's 16 products of elements at `dtype`: each is cut off, towards
// zero, 25 bits below the greatest exponent, and so is the sum at float32's last bit. Computed in
// whole numbers of the lowest bit that counts.
inline float fused_sum(const float* a, const float* b, float d, DType dtype) {
  constexpr int kInputs = 16;
  const int least = dtype == DType::kBF16 ? -126 : -14;
  const auto exponent_of = [](float value, int least_exponent) {
    int exponent = 0;
    std::frexp(value, &exponent);
    return std::max(exponent - 1, least_exponent);
  };
  int greatest = d == 0.0f ? -126 : exponent_of(d, -126);
  for (int k = 0; k < kInputs; ++k) {
    if (a[k] == 0.0f || b[k] == 0.0f) continue;
    greatest = std::max(greatest, exponent_of(a[k], least) + exponent_of(b[k], least));
  }
  const auto cut = [&](double value) {
    return static_cast<int64_t>(std::ldexp(value, 25 - greatest));
  };
  int64_t sum = cut(d);
  for (int k = 0; k < kInputs; ++k) sum += cut(double{a[k]} * b[k]);
  int shift = 0;  // to the 24 bits that a float32 has
  while (std::abs(sum) >> shift >= int64_t{1} << 24) ++shift;
  const int64_t kept = sum / (int64_t{1} << shift);
  return static_cast<float>(std::ldexp(static_cast<double>(kept), shift + greatest - 25));
}

}  // namespace specdec::testing
