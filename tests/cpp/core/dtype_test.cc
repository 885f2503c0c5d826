#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing/fp8_matrix.h"

namespace specdec {
namespace {

TEST(E4m3, EveryCodeIsItsValue) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if (testing::is_e4m3_nan(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(double{value}, testing::e4m3_value(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), kLargestE4m3);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
}

// Sign, 5 bits of exponent with bias 15, 10 bits of mantissa; exponent 0: subnormal.
TEST(Half, EveryPatternIsItsValueAndItsOwnNearest) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const int exponent = bits >> 10 & 31;
    const double mantissa = (bits & 0x3ff) / 1024.0;
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_TRUE(mantissa == 0.0 ? std::isinf(value) : std::isnan(value)) << bits;
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0 + mantissa, exponent - 15);
      EXPECT_EQ(double{std::abs(value)}, magnitude) << bits;
      EXPECT_EQ(float_to_half(value), bits);
    }
    EXPECT_EQ(std::signbit(value), bits >= 0x8000) << bits;
  }
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);      // a tie, to the even pattern
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);  // another
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);             // half way past the largest
}

}  // namespace
}  // namespace specdec
