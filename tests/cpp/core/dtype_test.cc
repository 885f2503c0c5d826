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

}  // namespace
}  // namespace specdec
