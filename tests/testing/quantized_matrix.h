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
  std::vector<uint8_t> zeros;
  std::vector<int8_t> table;
  std::vector<float> row_scales;  // in place of scales

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
  QuantizedMatrix& add_zeros(uint32_t seed) {
    std::mt19937 generator(seed);
    for (size_t i = 0; i < scales.size(); ++i) zeros.push_back(generator() % 16);
    return *this;
  }
  // With the least and the largest value.
  QuantizedMatrix& add_table(uint32_t seed) {
    std::mt19937 generator(seed);
    for (int i = 0; i < 16; ++i) table.push_back(static_cast<int8_t>(generator()));
    table.front() = -128;
    table.back() = 127;
    return *this;
  }
  QuantizedMatrix& use_row_scales(uint32_t seed) {
    std::mt19937 generator(seed);
    for (int64_t i = 0; i < rows; ++i) {
      row_scales.push_back(static_cast<float>(static_cast<int32_t>(generator())) * 0x1p-36f);
    }
    return *this;
  }

  WeightView view() const {
    const auto data_of = [](const auto& values) {
      return values.empty() ? nullptr : values.data();
    };
    WeightView view = {
        .values = {codes.data(), bits == 8 ? DType::kI8 : DType::kU8, {rows, cols * bits / 8}},
        .scales = scales.data(),
        .mins = data_of(mins),
        .zeros = data_of(zeros),
        .table = data_of(table),
        .group_size = group_size};
    if (!row_scales.empty()) {
      view.scales = nullptr;
      view.group_size = 0;
      view.block_scales = row_scales.data();
      view.block_rows = 1;
      view.block_cols = cols;
    }
    return view;
  }
};

// Rows [first, first + count) of a matrix of floats, or of integers with scales in groups.
inline WeightView rows_of(WeightView view, int64_t first, int64_t count) {
  const int64_t row_bytes = view.values.shape[1] * static_cast<int64_t>(size_of(view.values.dtype));
  view.values.data = static_cast<const uint8_t*>(view.values.data) + first * row_bytes;
  view.values.shape[0] = count;
  if (view.group_size == 0) return view;
  const int64_t groups = first * view.in_features() / view.group_size;
  view.scales += groups;
  if (view.mins != nullptr) view.mins += groups;
  if (view.zeros != nullptr) view.zeros += groups;
  return view;
}

}  // namespace specdec::testing
