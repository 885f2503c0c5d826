// Rows of features in the paged tensor behind the block ids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cpu/cpu_backend.h"
#include "testing/cpu_isas.h"
#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec {
namespace {

class CpuFeatures : public ::testing::TestWithParam<testing::IsaAndDType> {};

TEST_P(CpuFeatures, AreStoredAtTheirSlotsAndMovedWithTheirTokens) {
  const auto [isa, dtype] = GetParam();
  cpu::CpuBackend backend(isa, 2, dtype);
  constexpr int kSlots = 48, kWidth = 40, kDim = 17, kColumn = 20, kRows = 5;
  std::mt19937_64 random(22);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kDim), weight(kDim);
  for (float& value : x) value = normal(random);
  for (float& value : weight) value = normal(random);
  const NormParams norm = {.weight = weight.data()};
  const std::vector<int64_t> slots = {7, 47, -1, 20, 21};
  const std::vector<std::pair<int64_t, int64_t>> moves = {{20, 8}, {21, 9}, {47, 47}};
  for (const bool has_norm : {false, true}) {
    std::vector<double> expected(x.begin(), x.end());
    if (has_norm) {
      expected = reference::norm({.norm = norm, .x = x.data(), .num_rows = kRows, .dim = kDim});
    }
    std::vector<uint8_t> features(kSlots * kWidth * size_of(dtype), 0xff);
    const PagedRowsView view = {.rows = features.data(), .num_slots = kSlots, .width = kWidth};
    backend.store_rows({.x = x.data(),
                        .norm = has_norm ? &norm : nullptr,
                        .slot_mapping = slots.data(),
                        .to = view,
                        .column = kColumn,
                        .dim = kDim,
                        .num_rows = kRows});
    backend.copy_kv({.layers = {}, .features = view, .slots = moves});
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const int64_t source = slot == 8 ? 20 : slot == 9 ? 21 : slot;
      const auto row = std::find(slots.begin(), slots.end(), source) - slots.begin();
      for (int64_t i = 0; i < kWidth; ++i) {
        const double value = reference::element(features.data(), dtype, slot * kWidth + i);
        if (row == kRows || i < kColumn || i >= kColumn + kDim) {
          ASSERT_TRUE(std::isnan(value)) << slot << " " << i;
          continue;
        }
        const double want = expected[row * kDim + i - kColumn];
        const double rounding = dtype == DType::kBF16 ? 0x1p-8 : 2e-6;
        ASSERT_NEAR(value, want, rounding * std::abs(want)) << slot << " " << i;
      }
    }
  }
}

TEST_P(CpuFeatures, WithoutSlotsEachRowHasItsOwn) {
  const auto [isa, dtype] = GetParam();
  cpu::CpuBackend backend(isa, 2, dtype);
  constexpr int kRows = 5, kWidth = 40, kDim = 17, kColumn = 20;
  std::mt19937_64 random(24);
  const std::vector<float> x = testing::random_values(random, kRows * kDim);
  std::vector<uint8_t> features(kRows * kWidth * size_of(dtype));
  const PagedRowsView view = {.rows = features.data(), .num_slots = kRows, .width = kWidth};
  backend.store_rows(
      {.x = x.data(), .to = view, .column = kColumn, .dim = kDim, .num_rows = kRows});
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kDim; ++i) {
      EXPECT_EQ(reference::element(features.data(), dtype, row * kWidth + kColumn + i),
                reference::rounded(x[row * kDim + i], dtype));
    }
  }
}

TEST_P(CpuFeatures, AreLoadedFromTheirSlots) {
  const auto [isa, dtype] = GetParam();
  cpu::CpuBackend backend(isa, 2, dtype);
  constexpr int kSlots = 32, kWidth = 40, kDim = 17, kColumn = 20, kRows = 9;
  std::mt19937_64 random(23);
  std::vector<uint8_t> features(kSlots * kWidth * size_of(dtype));
  for (int i = 0; i < kSlots * kWidth; ++i) {
    const float value = testing::random_values(random, 1)[0];
    if (dtype == DType::kBF16) {
      reinterpret_cast<BFloat16*>(features.data())[i] = to_bfloat16(value);
    } else {
      reinterpret_cast<float*>(features.data())[i] = value;
    }
  }
  const std::vector<int64_t> slots = {31, 0, -1, 5, 5, 12, -1, 30, 7};
  const std::vector<float> before = testing::random_values(random, kRows * kDim);
  for (const bool accumulate : {false, true}) {
    for (const bool has_slots : {true, false}) {
      std::vector<float> out = before;
      LoadRowsArgs args = {.from = {.rows = features.data(), .num_slots = kSlots, .width = kWidth},
                           .slots = has_slots ? slots.data() : nullptr,
                           .column = kColumn,
                           .dim = kDim,
                           .out = out.data(),
                           .accumulate = accumulate,
                           .num_rows = kRows};
      const std::vector<double> expected = reference::loaded_rows(args, dtype);
      backend.load_rows(args);
      for (int i = 0; i < kRows * kDim; ++i) {
        ASSERT_EQ(out[i], static_cast<float>(expected[i])) << i / kDim << " " << i % kDim;
      }
      for (int64_t row = 0; row < kRows; ++row) {
        std::vector<float> alone(before.begin() + row * kDim, before.begin() + (row + 1) * kDim);
        args.slots = has_slots ? &slots[row] : &row;
        args.out = alone.data();
        args.num_rows = 1;
        backend.load_rows(args);
        ASSERT_EQ(alone,
                  std::vector<float>(out.begin() + row * kDim, out.begin() + (row + 1) * kDim));
      }
    }
  }
}

TEST_P(CpuFeatures, RowsAreGatheredByTheirIds) {
  const auto [isa, dtype] = GetParam();
  cpu::CpuBackend backend(isa, 2, dtype);
  constexpr int kDim = 37;
  std::mt19937_64 random(29);
  const std::vector<float> rows = testing::random_values(random, 6 * kDim);
  const std::vector<int32_t> ids = {5, 0, 0, 3};
  const std::vector<float> before = testing::random_values(random, 4 * kDim);
  for (const bool accumulate : {false, true}) {
    std::vector<float> out = before;
    backend.gather_rows({.rows = rows.data(),
                         .row_ids = ids.data(),
                         .out = out.data(),
                         .accumulate = accumulate,
                         .num_rows = 4,
                         .dim = kDim});
    for (int i = 0; i < 4 * kDim; ++i) {
      const float row = rows[ids[i / kDim] * kDim + i % kDim];
      ASSERT_EQ(out[i], accumulate ? before[i] + row : row) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CpuFeatures, testing::all_isas_and_dtypes(),
                         testing::isa_and_dtype_name);

}  // namespace
}  // namespace specdec
