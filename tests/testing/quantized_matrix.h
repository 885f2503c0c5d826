// Integer weights as a checkpoint stores them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backend/op_args.h"

namespace specdec::testing {

// A matrix of a checkpoint that is quantised already. All 16 or 256 codes occur.
struct QuantizedMatrix {
  int64_t rows, cols;
  int bits, group_size;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, mins;

  QuantizedMatrix(int64_t num_rows, int64_t num_cols, int num_bits, bool with_mins, uint32_t seed,
                  int group = kQuantGroup)
      : rows(num_rows), cols(num_cols), bits(num_bits), group_size(group) {
    std::mt19937 generator(seed);
    codes.resize(rows * cols * bits / 8);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(generator());
    const auto random_half = [&] {  // magnitudes from 2^-7 to 1, either sign
      return static_cast<uint16_t>((generator() & 0x83ff) | (8 + generator() % 7) << 10);
    };
    for (int64_t i = 0; i < rows * cols / group_size; ++i) {
      scales.push_back(random_half());
      if (with_mins) mins.push_back(random_half());
    }
  }
  WeightView view() const {
    return {.values = {codes.data(), bits == 8 ? DType::kI8 : DType::kU8, {rows, cols * bits / 8}},
            .scales = scales.data(),
            .mins = mins.empty() ? nullptr : mins.data(),
            .group_size = group_size};
  }
};

}  // namespace specdec::testing
