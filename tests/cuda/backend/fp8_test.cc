// Weights of 8-bit floats: a checkpoint's values are kept, others become the nearest. Products are
// compared with double loops and with the same numbers in the act dtype.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "testing/device_kinds.h"
#include "testing/fp8_matrix.h"
#include "testing/quantized_matrix.h"
#include "testing/quantized_world.h"

namespace specdec::cuda {
namespace {

using specdec::testing::e4m3_value;
using specdec::testing::Fp8Matrix;
using specdec::testing::is_e4m3_nan;
using specdec::testing::QuantizedMatrix;
using specdec::testing::random_values;
using specdec::testing::rounded;
using specdec::testing::to_bits;
using specdec::testing::view_of;
using testing::DeviceKind;
using testing::expect_products;
using World = testing::QuantizedWorld;

// Matrices [num_n, num_k] with one scale, one per output, and one per block.
std::vector<Fp8Matrix> matrices(int64_t num_n, int64_t num_k) {
  return {Fp8Matrix(num_n, num_k, num_n, num_k, 1), Fp8Matrix(num_n, num_k, 1, num_k, 2),
          Fp8Matrix(num_n, num_k, 16, 64, 3), Fp8Matrix(num_n, num_k, 128, 128, 4)};
}
WeightFormat format_of(const WeightView& view) {
  return keeps_fp8(WeightFormat::kFp8, view) ? WeightFormat::kFp8 : WeightFormat::kFp8Grouped;
}

class CudaFp8 : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(CudaFp8, StoredCodesAreKept) {
  World world(GetParam(), DType::kBF16);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2, 256}, {37, 70}, {19, 330}}) {
    for (const Fp8Matrix& matrix : matrices(n, k)) {
      const WeightFormat format = format_of(matrix.view());
      SCOPED_TRACE(::testing::Message() << name_of(format) << ' ' << n << " x " << k);
      const auto packed = world.pack(matrix.view(), format);
      const std::vector<float> stored = world.unpacked(*packed);
      // Rounding of a product with the scale, and of one with a float16 factor.
      const double error = format == WeightFormat::kFp8 ? 0x1p-24 : 0x1.01p-11;
      for (int64_t i = 0; i < n * k; ++i) {
        const double expected = matrix.value(i / k, i % k);
        ASSERT_NEAR(stored[i], expected, error * std::abs(expected)) << "at " << i;
      }
      const int64_t codes_bytes = (n + 15) / 16 * 16 * ((k + 31) / 32 * 32);
      EXPECT_LT(packed->size_bytes(), codes_bytes * 34 / 32 + 1024);
    }
  }
}

// Powers of two are exact factors.
TEST_P(CudaFp8, ScalesThatArePowersOfTwoAreExact) {
  World world(GetParam(), DType::kF16);
  Fp8Matrix matrix(21, 160, 8, 32, 1);
  for (size_t i = 0; i < matrix.scales.size(); ++i) {
    matrix.scales[i] = std::ldexp(i % 4 == 3 ? -1.0f : 1.0f, -static_cast<int>(i % 13));
  }
  for (size_t i = 0; i < 5; ++i) matrix.scales[i] = 0.0f;  // all blocks of one output
  matrix.scales[6] = 0.0f;                                 // one block of several
  const std::vector<float> stored =
      world.unpacked(*world.pack(matrix.view(), WeightFormat::kFp8Grouped));
  for (int64_t i = 0; i < std::ssize(stored); ++i) {
    ASSERT_EQ(stored[i], matrix.value(i / 160, i % 160)) << i;
  }
}

TEST_P(CudaFp8, ProductsMatchDoubleLoops) {
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{37, 70}, {24, 256}, {50, 330}}) {
      for (const Fp8Matrix& matrix : matrices(n, k)) {
        const auto packed = world.pack(matrix.view(), format_of(matrix.view()));
        const std::vector<float> weights = world.unpacked(*packed);
        for (int rows : {1, 3, 8, 16, 40}) {
          SCOPED_TRACE(::testing::Message() << name_of(packed->format()) << ' ' << name_of(act)
                                            << ' ' << n << " x " << k << ", " << rows);
          const std::vector<float> x = random_values(rows * k, 2);
          expect_products(world.linear(*packed, x.data(), rows), x, act, weights, k);
        }
      }
    }
  }
}

// Both act dtypes hold every 8-bit float, and sums have the same order.
TEST_P(CudaFp8, ProductsAreThoseOfTheSameNumbersInTheActDtype) {
  const int64_t n = 40, k = 300;
  Fp8Matrix matrix(n, k, n, k, 5);
  matrix.scales = {1.0f};
  std::vector<float> values;
  for (uint8_t code : matrix.codes) values.push_back(e4m3_to_float(code));
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    const auto packed = world.pack(matrix.view(), WeightFormat::kFp8);
    const auto plain = world.pack(view_of(values, n), WeightFormat::kAct);
    for (int rows : {1, 3, 8, 16, 17, 70}) {
      const std::vector<float> x = random_values(rows * k, rows);
      const std::vector<float> expected = world.linear(*plain, x.data(), rows);
      const std::vector<float> found = world.linear(*packed, x.data(), rows);
      ASSERT_EQ(0, std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)))
          << name_of(act) << ", " << rows << " rows";
    }
  }
}

// Values past the largest code become that; ties go to even codes.
uint8_t nearest_code(double value) {
  int best = 0;
  for (int code = 0; code < 127; ++code) {
    const double mine = std::abs(std::abs(value) - e4m3_value(code));
    const double other = std::abs(std::abs(value) - e4m3_value(best));
    if (mine < other || (mine == other && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best);
}

// `values`: the view's, [n, k].
void expect_nearest(World& world, const WeightView& view, const std::vector<float>& values) {
  const int64_t k = view.in_features();
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp8Grouped}) {
    const std::vector<float> stored = world.unpacked(*world.pack(view, format));
    for (int64_t row = 0; row < view.rows(); ++row) {
      float largest = 0.0f;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        largest = std::max(largest, std::abs(values[i]));
      }
      const float scale = largest < 0x1p-100f ? 0.0f : largest / 448.0f;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        const float quotient = scale == 0.0f ? 0.0f : values[i] / scale;
        const float magnitude = static_cast<float>(e4m3_value(nearest_code(quotient)));
        ASSERT_EQ(stored[i], std::copysign(magnitude, quotient) * scale)
            << name_of(format) << ' ' << name_of(view.values.dtype) << ", row " << row << " at "
            << i % k;
      }
    }
  }
}

TEST_P(CudaFp8, FloatsBecomeTheNearest) {
  const int64_t n = 21, k = 70;
  World world(GetParam(), DType::kBF16);
  std::vector<float> values = random_values(n * k, 1);
  const float row_scales[] = {0.0f, 1e-42f, 1e-28f, 1e-7f, 1e3f, 1e4f};
  for (int64_t i = 0; i < 6 * k; ++i) values[i] *= row_scales[i / k];
  // Ties, and values between subnormals: the scale is 1.
  for (int64_t i = 0; i < k; ++i) values[6 * k + i] = static_cast<float>(i) * 0x1p-11f;
  for (int64_t i = 0; i < k; ++i) values[7 * k + i] = 16.0f + static_cast<float>(i);
  values[6 * k] = 448.0f;
  values[7 * k] = -448.0f;
  expect_nearest(world, view_of(values, n), values);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<uint16_t> bits = to_bits(values, dtype);
    expect_nearest(world, {.values = {bits.data(), dtype, {n, k}}}, rounded(values, dtype));
  }
}

TEST_P(CudaFp8, FusedPartsAreStoredAsTheyWouldBeAlone) {
  World world(GetParam(), DType::kF16);
  const Fp8Matrix first(13, 160, 13, 160, 1), second(20, 160, 1, 160, 2), third(9, 160, 8, 32, 3);
  const Fp8Matrix odd(9, 160, 8, 48, 4);  // groups cross the borders of blocks
  const std::vector<float> floats = random_values(6 * 160, 5);
  const QuantizedMatrix integers(7, 160, 4, true, 6);
  const WeightView views[] = {first.view(), second.view(),      third.view(),
                              odd.view(),   view_of(floats, 6), integers.view()};
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp8Grouped, WeightFormat::kAct,
                              WeightFormat::kInt8, WeightFormat::kInt4Grouped}) {
    const std::vector<float> fused =
        world.unpacked(*world.backend->pack_linear({.parts = views, .format = format}));
    std::vector<float> alone;
    for (const WeightView& view : views) {
      const std::vector<float> part = world.unpacked(*world.pack(view, format));
      alone.insert(alone.end(), part.begin(), part.end());
    }
    EXPECT_EQ(fused, alone) << name_of(format);
    // Values that are quantised again are as near as the format allows.
    double error = 0.0, power = 0.0;
    for (int64_t row = 0; row < 9; ++row) {
      for (int64_t i = 0; i < 160; ++i) {
        const double expected = odd.value(row, i);
        error += std::pow(fused[(13 + 20 + 9 + row) * 160 + i] - expected, 2);
        power += expected * expected;
      }
    }
    EXPECT_LT(error / power, format == WeightFormat::kInt4Grouped ? 0.02 : 1e-3) << name_of(format);
  }
}

TEST_P(CudaFp8, GatesAndUpsHaveScalesOfTheirOwn) {
  const int64_t inner = 21, k = 100;
  const Fp8Matrix gate(inner, k, inner, k, 1), up(inner, k, 1, k, 2);
  const Fp8Matrix gate_blocks(inner, k, 16, 32, 3), up_blocks(inner, k, 16, 32, 4);
  const DType act = DType::kF16;
  World world(GetParam(), act);
  for (const bool in_blocks : {false, true}) {
    const WeightView views[] = {in_blocks ? gate_blocks.view() : gate.view(),
                                in_blocks ? up_blocks.view() : up.view()};
    const WeightFormat format = in_blocks ? WeightFormat::kFp8Grouped : WeightFormat::kFp8;
    const auto packed =
        world.backend->pack_linear({.parts = views, .format = format, .gated = true});
    for (int rows : {1, 5, 20}) {
      const std::vector<float> x = random_values(rows * k, 3, 0.3f);
      const std::vector<uint16_t> bits = world.gated(*packed, x, rows, Activation::kRelu);
      const std::vector<float> gates = world.linear(*world.pack(views[0], format), x.data(), rows);
      const std::vector<float> ups = world.linear(*world.pack(views[1], format), x.data(), rows);
      for (size_t i = 0; i < bits.size(); ++i) {
        const float expected = std::max(gates[i], 0.0f) * ups[i];
        ASSERT_EQ(bits[i], to_bits(expected, act)) << name_of(format) << " at " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaFp8, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
