// Rows of features in the paged tensor, on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::from_bits;
using specdec::testing::to_bits;

class CudaFeatures : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(CudaFeatures, AreStoredAtTheirSlotsAndMovedWithTheirTokens) {
  constexpr int kSlots = 64, kWidth = 1600, kDim = 300, kColumn = 20, kRows = 5;
  for (const DType act : {DType::kBF16, DType::kF16}) {
    BackendWorld world(GetParam(), act);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> want(kSlots * kWidth);
    for (uint16_t& bits : want) bits = to_bits(normal(random), act);
    Buffer features = world.upload(want);
    const PagedRowsView view = {.rows = features.data(), .num_slots = kSlots, .width = kWidth};
    std::vector<float> x(kRows * kDim), weight(kDim);
    for (float& value : x) value = normal(random);
    for (float& value : weight) value = normal(random);
    const std::vector<int64_t> slots = {7, 47, -1, 20, 21};
    const Buffer x_buffer = world.upload(x), weight_buffer = world.upload(weight);
    const Buffer slot_buffer = world.upload(slots);
    NormParams norm = {.weight = weight_buffer.as<float>()};
    world.backend->begin_step();
    for (const bool has_norm : {false, true}) {
      const int column = kColumn + (has_norm ? kDim : 0);
      world.backend->store_rows({.x = x_buffer.as<float>(),
                                 .norm = has_norm ? &norm : nullptr,
                                 .slot_mapping = slot_buffer.as<int64_t>(),
                                 .to = view,
                                 .column = column,
                                 .dim = kDim,
                                 .num_rows = kRows});
      std::vector<double> expected(x.begin(), x.end());
      if (has_norm) {
        const NormParams host = {.weight = weight.data()};
        expected = reference::norm({.norm = host, .x = x.data(), .num_rows = kRows, .dim = kDim});
      }
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; slots[row] >= 0 && i < kDim; ++i) {
          want[slots[row] * kWidth + column + i] =
              to_bits(static_cast<float>(expected[row * kDim + i]), act);
        }
      }
    }
    // One request with more pairs than the kernel reads at once, and one with two.
    std::vector<std::pair<int64_t, int64_t>> moves = {{20, 8}, {21, 9}};
    for (int64_t i = 0; i < 12; ++i) moves.emplace_back(23 + 2 * i, 23 + i);
    world.backend->copy_kv({.layers = {}, .features = view, .slots = moves});
    for (const auto& [from, to] : moves) {
      std::copy_n(want.begin() + from * kWidth, kWidth, want.begin() + to * kWidth);
    }
    std::vector<uint16_t> got(want.size());
    world.backend->read(view.rows, std::as_writable_bytes(std::span(got)));
    for (size_t i = 0; i < got.size(); ++i) {
      // The norm in float32 may round otherwise.
      const double expected = from_bits(want[i], act);
      const double step = act == DType::kBF16 ? 0x1p-7 : 0x1p-10;
      const bool is_normed = i % kWidth >= kColumn + kDim && i % kWidth < kColumn + 2 * kDim;
      ASSERT_NEAR(from_bits(got[i], act), expected, is_normed ? step * std::abs(expected) : 0.0)
          << i / kWidth << " " << i % kWidth;
    }
  }
}

TEST_P(CudaFeatures, WithoutSlotsEachRowHasItsOwn) {
  constexpr int kWidth = 700, kDim = 300, kColumn = 20, kRows = 5;
  for (const DType act : {DType::kBF16, DType::kF16}) {
    BackendWorld world(GetParam(), act);
    const std::vector<float> x = specdec::testing::random_values(kRows * kDim, 3);
    const Buffer x_buffer = world.upload(x);
    Buffer features = world.upload(std::vector<uint16_t>(kRows * kWidth));
    world.backend->store_rows({.x = x_buffer.as<float>(),
                               .to = {.rows = features.data(), .num_slots = kRows, .width = kWidth},
                               .column = kColumn,
                               .dim = kDim,
                               .num_rows = kRows});
    const std::vector<uint16_t> got = world.download<uint16_t>(features);
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kDim; ++i) {
        ASSERT_EQ(got[row * kWidth + kColumn + i], to_bits(x[row * kDim + i], act));
      }
    }
  }
}

TEST_P(CudaFeatures, RowsAreGatheredByTheirIds) {
  constexpr int kDim = 300;
  BackendWorld world(GetParam(), DType::kBF16);
  const std::vector<float> rows = specdec::testing::random_values(6 * kDim, 1);
  const std::vector<float> before = specdec::testing::random_values(4 * kDim, 2);
  const std::vector<int32_t> ids = {5, 0, 0, 3};
  const Buffer row_buffer = world.upload(rows), id_buffer = world.upload(ids);
  for (const bool accumulate : {false, true}) {
    Buffer out = world.upload(before);
    world.backend->gather_rows({.rows = row_buffer.as<float>(),
                                .row_ids = id_buffer.as<int32_t>(),
                                .out = out.as<float>(),
                                .accumulate = accumulate,
                                .num_rows = 4,
                                .dim = kDim});
    const std::vector<float> got = world.download<float>(out);
    for (int i = 0; i < 4 * kDim; ++i) {
      const float row = rows[ids[i / kDim] * kDim + i % kDim];
      ASSERT_EQ(got[i], accumulate ? before[i] + row : row) << i;
    }
  }
}

TEST_P(CudaFeatures, AreLoadedFromTheirSlots) {
  constexpr int kSlots = 32, kWidth = 700, kDim = 300, kColumn = 20, kRows = 9;
  for (const DType act : {DType::kBF16, DType::kF16}) {
    BackendWorld world(GetParam(), act);
    const auto features = to_bits(specdec::testing::random_values(kSlots * kWidth, 1), act);
    const std::vector<float> before = specdec::testing::random_values(kRows * kDim, 2);
    const std::vector<int64_t> slots = {31, 0, -1, 5, 5, 12, -1, 30, 7};
    Buffer feature_buffer = world.upload(features);
    const auto load = [&](int first, int count, bool accumulate, bool has_slots) {
      const std::vector<int64_t> some(slots.begin() + first, slots.begin() + first + count);
      const Buffer slot_buffer = world.upload(some);
      Buffer out = world.upload(std::vector<float>(before.begin() + first * kDim,
                                                   before.begin() + (first + count) * kDim));
      world.backend->load_rows(
          {.from = {.rows = feature_buffer.data(), .num_slots = kSlots, .width = kWidth},
           .slots = has_slots ? slot_buffer.as<int64_t>() : nullptr,
           .column = kColumn,
           .dim = kDim,
           .out = out.as<float>(),
           .accumulate = accumulate,
           .num_rows = count});
      return world.download<float>(out);
    };
    for (const auto& [accumulate, has_slots] :
         {std::pair{false, true}, {true, true}, {false, false}, {true, false}}) {
      std::vector<float> onto = before;
      const std::vector<double> expected =
          reference::loaded_rows({.from = {.rows = const_cast<uint16_t*>(features.data()),
                                           .num_slots = kSlots,
                                           .width = kWidth},
                                  .slots = has_slots ? slots.data() : nullptr,
                                  .column = kColumn,
                                  .dim = kDim,
                                  .out = onto.data(),
                                  .accumulate = accumulate,
                                  .num_rows = kRows},
                                 act);
      const std::vector<float> got = load(0, kRows, accumulate, has_slots);
      for (int i = 0; i < kRows * kDim; ++i) {
        ASSERT_EQ(got[i], static_cast<float>(expected[i])) << i / kDim << " " << i % kDim;
      }
      for (int row = 0; has_slots && row < kRows; ++row) {
        ASSERT_EQ(load(row, 1, accumulate, has_slots),
                  std::vector<float>(got.begin() + row * kDim, got.begin() + (row + 1) * kDim));
      }
    }
  }
}

TEST_P(CudaFeatures, SlotsOfABatchAreStagedAndPaddingHasNone) {
  BackendWorld world(GetParam(), DType::kBF16);
  for (const int num_rows : {5, 150}) {
    const std::vector<int32_t> rows(num_rows, 0), cu_rows = {0, num_rows}, base_lens = {3},
                                                  table = {1};
    const std::vector<int64_t> slots(num_rows, 20);
    std::vector<int64_t> feature_slots, state_slots;
    for (int i = 0; i < num_rows; ++i) {
      feature_slots.push_back(100 + i);
      state_slots.push_back(i % 2 == 0 ? 200 + i : -1);
    }
    const std::vector<uint8_t> is_tree = {0};
    BatchView batch = {.num_requests = 1,
                       .num_rows = num_rows,
                       .token_ids = rows.data(),
                       .positions = rows.data(),
                       .slot_mapping = slots.data(),
                       .cu_rows = cu_rows.data(),
                       .base_lens = base_lens.data(),
                       .block_tables = table.data(),
                       .max_blocks_per_request = 1,
                       .is_tree = is_tree.data()};
    world.backend->begin_step();
    const BatchView plain = world.backend->stage(batch);
    EXPECT_EQ(plain.feature_slots, nullptr);
    EXPECT_EQ(plain.state_slots, nullptr);
    batch.feature_slots = feature_slots.data();
    batch.state_slots = state_slots.data();
    const BatchView staged = world.backend->stage(batch);
    const auto expect_staged = [&](const int64_t* array, std::vector<int64_t> want) {
      want.resize(staged.num_rows, -1);
      std::vector<int64_t> got(want.size());
      world.backend->read(array, std::as_writable_bytes(std::span(got)));
      EXPECT_EQ(got, want) << num_rows;
    };
    expect_staged(staged.feature_slots, feature_slots);
    expect_staged(staged.state_slots, state_slots);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaFeatures, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
