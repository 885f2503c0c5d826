#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "testing/cpu_isas.h"
#include "testing/oracle/sampler.h"
#include "testing/sampler_harness.h"

namespace specdec {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers published with the Random123 library.
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class GumbelNoise : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  float noise(uint64_t seed, int64_t position, int32_t token, uint32_t stream = 0) {
    const float zero = 0.0f;
    cpu::RowMaximum drawn = {};
    kernels_.draw_listed(&token, &zero, 1, {seed, position, stream}, &drawn, 1);
    return drawn.value;
  }

  cpu::SamplingKernels kernels_ = cpu::kernel_table(GetParam()).sampling;
};

TEST_P(GumbelNoise, AgreesWithDoublePrecision) {
  for (int i = 0; i < 100000; ++i) {
    const uint64_t seed = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(i);
    const int64_t position = (int64_t{i} << 28) + i;
    const int32_t token = i % 151936;
    const uint32_t stream = i % 2 == 0 ? 0u : 0xFFFFFFFFu - i;
    const double expected = reference::noise(seed, position, token, stream);
    ASSERT_NEAR(noise(seed, position, token, stream), expected, 5e-7 * (1.0 + std::abs(expected)))
        << "seed " << seed << " position " << position << " token " << token;
  }
}

// The extremes of the 32-bit words lie beyond what sampling meets; these draws reach within 2^-20
// of either end, where a float made from the word alone would have lost its precision.
TEST_P(GumbelNoise, KeepsPrecisionInBothTails) {
  double lowest = 0.0, highest = 0.0;
  for (int64_t position = 0; position < 4000000; ++position) {
    const auto words = philox4x32_10({static_cast<uint32_t>(position), 0, 0, 0}, {7, 0});
    for (int32_t token = 0; token < 4; ++token) {
      if (words[token] > 0x800u && words[token] < 0xFFFFF800u) continue;
      const double expected = reference::noise(7, position, token);
      ASSERT_NEAR(noise(7, position, token), expected, 3e-6);
      lowest = std::min(lowest, expected);
      highest = std::max(highest, expected);
    }
  }
  EXPECT_LT(lowest, -2.6);
  EXPECT_GT(highest, 14.5);
}

TEST_P(GumbelNoise, HasTheMomentsOfTheGumbelDistribution) {
  constexpr int kCount = 400000;
  double sum = 0.0, sum_of_squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double x = noise(42, i / 100, i % 100);
    sum += x;
    sum_of_squares += x * x;
  }
  const double mean = sum / kCount;
  const double variance = sum_of_squares / kCount - mean * mean;
  // Five standard errors; the fourth central moment of the Gumbel distribution is 5.4 variances^2.
  const double expected_variance = std::numbers::pi * std::numbers::pi / 6;
  EXPECT_NEAR(mean, std::numbers::egamma, 5 * std::sqrt(expected_variance / kCount));
  EXPECT_NEAR(variance, expected_variance, 5 * expected_variance * std::sqrt(4.4 / kCount));
}

INSTANTIATE_TEST_SUITE_P(Isas, GumbelNoise, ::testing::ValuesIn(testing::supported_isas()),
                         [](const auto& info) { return std::string(cpu::name_of(info.param)); });

}  // namespace
}  // namespace specdec
