// Rows of features in the paged tensor behind the block ids, on the device.
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
    const std::vector<int64_t> slots = {7, 47, 0, 20, 21};
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
        for (int i = 0; i < kDim; ++i) {
          want[slots[row] * kWidth + column + i] =
              to_bits(static_cast<float>(expected[row * kDim + i]), act);
        }
      }
    }
    // A request with more pairs than are read at once, and one with two.
    std::vector<std::pair<int64_t, int64_t>> moves = {{20, 8}, {21, 9}};
    for (int64_t i = 0; i < 12; ++i) moves.emplace_back(23 + 2 * i, 23 + i);
    world.backend->copy_kv({.layers = {}, .features = view, .slots = moves});
    for (const auto& [from, to] : moves) {
      std::copy_n(want.begin() + from * kWidth, kWidth, want.begin() + to * kWidth);
    }
    std::vector<uint16_t> got(want.size());
    world.backend->read(view.rows, std::as_writable_bytes(std::span(got)));
    for (size_t i = 0; i < got.size(); ++i) {
      // A norm in float32 may round the other way.
      const double expected = from_bits(want[i], act);
      const double step = act == DType::kBF16 ? 0x1p-7 : 0x1p-10;
      const bool is_normed = i % kWidth >= kColumn + kDim && i % kWidth < kColumn + 2 * kDim;
      ASSERT_NEAR(from_bits(got[i], act), expected, is_normed ? step * std::abs(expected) : 0.0)
          << i / kWidth << " " << i % kWidth;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaFeatures, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
