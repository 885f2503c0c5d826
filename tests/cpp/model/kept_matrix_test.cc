// What a matrix keeps of codes in each case, against scale * (code - zero) in double precision.
#include "model/kept_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace specdec {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kInputs = 64;
constexpr int64_t kGroups = 2;

// Codes that run through all values, zeros that differ between groups, and scales that fit float16.
DecodedCodes codes_of(int bits, int zero_step = 1) {
  DecodedCodes decoded{.bits = bits};
  const int num_codes = 1 << bits;
  for (int64_t i = 0; i < kRows * kInputs; i += bits == 8 ? 1 : 2) {
    const auto code = [&](int64_t at) { return static_cast<int>(at * 7 + at / 16) % num_codes; };
    decoded.codes.push_back(static_cast<uint8_t>(bits == 8 ? code(i) : code(i) | code(i + 1) << 4));
  }
  for (int64_t i = 0; i < kRows * kGroups; ++i) {
    decoded.zeros.push_back(static_cast<int16_t>((num_codes / 2 + i * zero_step) % num_codes));
    decoded.scales.push_back(0.25f * static_cast<float>(i + 1));
  }
  return decoded;
}

double value_of(const DecodedCodes& decoded, int64_t row, int64_t k) {
  const int64_t at = row * kInputs + k;
  const int byte = decoded.codes[static_cast<size_t>(decoded.bits == 8 ? at : at / 2)];
  const int code = decoded.bits == 8 ? byte : byte >> (at % 2 * 4) & 15;
  const int64_t group =
      decoded.group_of.empty() ? k * kGroups / kInputs : decoded.group_of[static_cast<size_t>(k)];
  const auto of_group = static_cast<size_t>(row * kGroups + group);
  return double(decoded.scales[of_group]) * (code - decoded.zeros[of_group]);
}

// The view's value, by the comments of WeightView.
double value_of(const WeightView& view, int64_t row, int64_t k) {
  if (view.values.dtype == DType::kF32) {
    return static_cast<const float*>(view.values.data)[row * kInputs + k];
  }
  const int64_t at = row * kInputs + k;
  const auto* bytes = static_cast<const uint8_t*>(view.values.data);
  const int code =
      view.bits() == 8 ? static_cast<int8_t>(bytes[at]) : bytes[at / 2] >> (at % 2 * 4) & 15;
  if (view.has_row_scales()) return double(view.block_scales[row]) * code;
  const int64_t group = (row * kInputs + k) / view.group_size;
  const double scale = half_to_float(view.scales[group]);
  if (view.mins != nullptr) return scale * code + half_to_float(view.mins[group]);
  if (view.table != nullptr) return scale * view.table[code];
  if (view.zeros != nullptr) return scale * (code - view.zeros[group]);
  return scale * (view.bits() == 8 ? code : code - 8);
}

KeptMatrix kept(DecodedCodes decoded, bool keeps_codes = true) {
  KeptMatrix matrix({0, kRows}, kInputs, kInputs / kGroups, keeps_codes);
  matrix.keep(std::move(decoded));
  return matrix;
}

void expect_values(const DecodedCodes& decoded, const KeptMatrix& matrix, double tolerance = 0.0) {
  const WeightView view = matrix.view({0, kRows});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kInputs; ++k) {
      ASSERT_NEAR(value_of(view, row, k), value_of(decoded, row, k), tolerance);
    }
  }
}

TEST(KeptMatrix, CodesOfEveryWidthKeepTheirValues) {
  for (const int bits : {2, 3, 4, 8}) {
    const DecodedCodes decoded = codes_of(bits);
    const KeptMatrix matrix = kept(decoded);
    EXPECT_EQ(matrix.why_float(), "");
    EXPECT_EQ(matrix.view({0, kRows}).bits(), bits == 8 ? 8 : 4);
    expect_values(decoded, matrix);
    const KeptMatrix widened = kept(decoded, /*keeps_codes=*/false);
    EXPECT_EQ(widened.view({0, kRows}).values.dtype, DType::kF32);
    EXPECT_EQ(widened.why_float(), "");
    expect_values(decoded, widened);
  }
}

TEST(KeptMatrix, OnlyFourBitsNeedZeros) {
  EXPECT_NE(kept(codes_of(4)).view({0, 1}).zeros, nullptr);
  EXPECT_EQ(kept(codes_of(4, 0)).view({0, 1}).zeros, nullptr);
  EXPECT_EQ(kept(codes_of(3)).view({0, 1}).zeros, nullptr);
  EXPECT_EQ(kept(codes_of(8)).view({0, 1}).zeros, nullptr);
}

TEST(KeptMatrix, WideDifferencesGetAMin) {
  DecodedCodes decoded = codes_of(8);
  decoded.zeros.assign(decoded.zeros.size(), int16_t{3});
  const KeptMatrix matrix = kept(decoded);
  EXPECT_NE(matrix.view({0, kRows}).mins, nullptr);
  expect_values(decoded, matrix, 0.25 * kRows * kGroups * 125 * 0x1p-11);
}

TEST(KeptMatrix, AScalePerOutputStaysFloat32) {
  DecodedCodes decoded = codes_of(8, 0);
  decoded.scales = {1.0f / 3, 2.0f / 3, 1e-30f};
  decoded.zeros.resize(kRows);
  KeptMatrix matrix({0, kRows}, kInputs, kInputs, true);
  matrix.keep(decoded);
  const WeightView view = matrix.view({0, kRows});
  ASSERT_TRUE(view.has_row_scales());
  EXPECT_EQ(view.block_scales[1], 2.0f / 3);
  EXPECT_EQ(static_cast<const int8_t*>(view.values.data)[1], decoded.codes[1] - 128);
}

TEST(KeptMatrix, WhatNoViewCanSayBecomesFloat32) {
  DecodedCodes scales = codes_of(4);
  scales.scales[1] = 1.0f / 3;
  EXPECT_EQ(kept(scales).why_float(), "a scale is no float16");
  expect_values(scales, kept(scales), 1e-6);
  DecodedCodes uneven = codes_of(4);
  for (int64_t k = 0; k < kInputs; ++k) uneven.group_of.push_back(k % 3 == 0 ? 1 : 0);
  EXPECT_EQ(kept(uneven).why_float(), "act-order (g_idx) has groups of several sizes");
  expect_values(uneven, kept(uneven));
  KeptMatrix short_groups({0, kRows}, kInputs, 8, true);
  DecodedCodes decoded = codes_of(4);
  decoded.zeros.assign(kRows * kInputs / 8, int16_t{8});
  decoded.scales.assign(kRows * kInputs / 8, 0.5f);
  short_groups.keep(decoded);
  EXPECT_EQ(short_groups.why_float(), "groups of 8 inputs are no multiple of 32");
}

TEST(KeptMatrix, ScatteredGroupsGiveColumnsAnOrder) {
  for (const int bits : {2, 3, 4, 8}) {
    DecodedCodes decoded = codes_of(bits);
    for (int64_t k = 0; k < kInputs; ++k) decoded.group_of.push_back(static_cast<int32_t>(k % 2));
    const KeptMatrix matrix = kept(decoded);
    EXPECT_EQ(matrix.why_float(), "");
    const WeightView view = matrix.view({0, kRows});
    ASSERT_NE(view.input_order, nullptr);
    std::vector<float> values(kInputs);
    for (int64_t row = 0; row < kRows; ++row) {
      dequantize_row(view, row, values.data());
      for (int64_t j = 0; j < kInputs; ++j) {
        const int32_t input = view.input_order[j];
        EXPECT_EQ(input, j < kInputs / 2 ? 2 * j : 2 * j - kInputs + 1);
        EXPECT_EQ(value_of(view, row, j), value_of(decoded, row, input));
        EXPECT_EQ(values[static_cast<size_t>(input)], value_of(decoded, row, input));
      }
    }
    expect_values(decoded, kept(decoded, /*keeps_codes=*/false));
  }
}

TEST(KeptMatrix, ATableIsKeptInEightBits) {
  const DecodedCodes codes = codes_of(4);
  DecodedTable decoded{.codes = codes.codes, .scales = codes.scales};
  for (int i = 0; i < 16; ++i) decoded.table[static_cast<size_t>(i)] = std::sin(float(i)) / 2;
  KeptMatrix matrix({0, kRows}, kInputs, kInputs / kGroups, true);
  matrix.keep(decoded);
  const WeightView view = matrix.view({0, kRows});
  ASSERT_NE(view.table, nullptr);
  for (int64_t k = 0; k < kInputs; ++k) {
    const int byte = codes.codes[static_cast<size_t>(k / 2)];
    const double value = double(codes.scales[static_cast<size_t>(k * kGroups / kInputs)]) *
                         decoded.table[static_cast<size_t>(byte >> (k % 2 * 4) & 15)];
    EXPECT_NEAR(value_of(view, 0, k), value, 0.5 * 0.5 * 0.5 / 127 * 1.1);
  }
  for (float& value : decoded.table) value = std::round(16 * value);
  matrix.keep(decoded);
  EXPECT_EQ(matrix.view({0, kRows}).table[2], std::lround(decoded.table[2]));
}

TEST(KeptMatrix, RowsAreASliceOfTheWhole) {
  const DecodedCodes decoded = codes_of(4);
  const KeptMatrix matrix = kept(decoded);
  const WeightView last = matrix.view({2, 1});
  EXPECT_EQ(last.rows(), 1);
  for (int64_t k = 0; k < kInputs; ++k) {
    EXPECT_EQ(value_of(last, 0, k), value_of(decoded, 2, k));
  }
}

}  // namespace
}  // namespace specdec
