// 8-bit floats as a checkpoint stores them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "backend/op_args.h"

namespace specdec::testing {

inline bool is_e4m3_nan(int code) { return (code & 0x7f) == 0x7f; }

// Sign, exponent with bias 7, mantissa of 3 bits; exponent 0: subnormal.
inline double e4m3_value(int code) {
  const int exponent = code >> 3 & 15;
  const double mantissa = (code & 7) / 8.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1.0 + mantissa, exponent - 7);
  return code >= 128 ? -magnitude : magnitude;
}

// All codes but NaN occur where there is room. Blocks past the edges are cut off.
struct Fp8Matrix {
  int64_t rows, cols, block_rows, block_cols;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  Fp8Matrix(int64_t num_rows, int64_t num_cols, int64_t of_rows, int64_t of_cols, uint32_t seed)
      : rows(num_rows), cols(num_cols), block_rows(of_rows), block_cols(of_cols) {
    std::mt19937 generator(seed);
    int next = static_cast<int>(seed);
    for (int64_t i = 0; i < rows * cols; ++i) {
      while (is_e4m3_nan(next % 256)) ++next;
      codes.push_back(static_cast<uint8_t>(next++));
    }
    const int64_t num_scales =
        ((rows + block_rows - 1) / block_rows) * ((cols + block_cols - 1) / block_cols);
    std::uniform_real_distribution<float> magnitude(0.001f, 0.01f);
    for (int64_t i = 0; i < num_scales; ++i) scales.push_back(magnitude(generator));
  }
  WeightView view() const {
    return {.values = {codes.data(), DType::kF8E4M3, {rows, cols}},
            .block_scales = scales.data(),
            .block_rows = block_rows,
            .block_cols = block_cols};
  }
  double value(int64_t row, int64_t k) const {
    const int64_t num_blocks = (cols + block_cols - 1) / block_cols;
    return e4m3_value(codes[row * cols + k]) *
           double{scales[row / block_rows * num_blocks + k / block_cols]};
  }
};

}  // namespace specdec::testing
