#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "cpp/cpu/simd_functions.h"
#include "testing/cpu_isas.h"

namespace specdec::cpu {

#define SPECDEC_ISA(name)         \
  namespace name {                \
  SimdFunctions simd_functions(); \
  }
SPECDEC_COMPILED_ISAS
#undef SPECDEC_ISA

namespace {

constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SimdFunctions functions_of(Isa isa) {
#define SPECDEC_ISA(name) \
  if (name_of(isa) == #name) return name::simd_functions();
  SPECDEC_COMPILED_ISAS
#undef SPECDEC_ISA
  throw std::logic_error("kernels that are not compiled");
}

class Simd : public ::testing::TestWithParam<Isa> {
 protected:
  SimdFunctions simd() const { return functions_of(GetParam()); }

  static float first_lane(void (*function)(const float*, float*), float x) {
    float in[kLanes], out[kLanes];
    std::fill(in, in + kLanes, x);
    function(in, out);
    for (float lane : out)
      EXPECT_EQ(std::bit_cast<uint32_t>(lane), std::bit_cast<uint32_t>(out[0]));
    return out[0];
  }
  // Largest error over the inputs; relative or absolute.
  static double worst_error(void (*function)(const float*, float*), double (*exact)(double),
                            std::vector<float> inputs, bool relative) {
    inputs.resize((inputs.size() + kLanes - 1) / kLanes * kLanes, 1.0f);
    double worst = 0.0;
    for (size_t i = 0; i < inputs.size(); i += kLanes) {
      float out[kLanes];
      function(&inputs[i], out);
      for (int lane = 0; lane < kLanes; ++lane) {
        const double expected = exact(inputs[i + lane]);
        const double error = std::abs(out[lane] - expected) / (relative ? std::abs(expected) : 1.0);
        if (!(error <= worst) && expected != 0.0) worst = std::isnan(error) ? 1.0 : error;
      }
    }
    return worst;
  }
  static std::vector<float> evenly(double low, double high, int count) {
    std::vector<float> values;
    for (int i = 0; i <= count; ++i) {
      values.push_back(static_cast<float>(low + (high - low) * i / count));
    }
    return values;
  }
};

TEST_P(Simd, ExpIsWithinTwoUnitsOfTheLastPlace) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_error(simd().exp, exact, evenly(-87.3, 88.7, 400000), true), 2e-7);
  EXPECT_LE(worst_error(simd().exp, exact, evenly(-1.0, 1.0, 200000), true), 2e-7);
}

TEST_P(Simd, ExpEndsInZeroAndInfinity) {
  EXPECT_EQ(first_lane(simd().exp, -kInfinity), 0.0f);
  EXPECT_EQ(first_lane(simd().exp, -1e30f), 0.0f);
  EXPECT_EQ(first_lane(simd().exp, -104.0f), 0.0f);
  EXPECT_EQ(first_lane(simd().exp, 0.0f), 1.0f);
  EXPECT_EQ(first_lane(simd().exp, -0.0f), 1.0f);
  EXPECT_EQ(first_lane(simd().exp, 89.0f), kInfinity);
  EXPECT_EQ(first_lane(simd().exp, 1e30f), kInfinity);
  EXPECT_EQ(first_lane(simd().exp, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(first_lane(simd().exp, std::nanf(""))));
}

TEST_P(Simd, LogIsAccurateForEveryExponentAndNearOne) {
  const auto exact = [](double x) { return std::log(x); };
  std::mt19937_64 random(3);
  std::vector<float> inputs;
  for (uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (int i = 0; i < 500; ++i) {
      inputs.push_back(
          std::bit_cast<float>((exponent << 23) | static_cast<uint32_t>(random() & 0x7fffffu)));
    }
  }
  EXPECT_LE(worst_error(simd().log, exact, inputs, true), 2e-7);
  EXPECT_LE(worst_error(simd().log, exact, evenly(0.5, 2.0, 400000), true), 2e-7);
  EXPECT_EQ(first_lane(simd().log, 1.0f), 0.0f);
}

TEST_P(Simd, ErfAndSigmoidAreAccurate) {
  const auto exact_erf = [](double x) { return std::erf(x); };
  EXPECT_LE(worst_error(simd().erf, exact_erf, evenly(-6.0, 6.0, 200000), false), 1e-6);
  const auto exact_sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  EXPECT_LE(worst_error(simd().sigmoid, exact_sigmoid, evenly(-80, 80, 200000), true), 4e-7);
}

TEST_P(Simd, SoftplusIsAccurate) {
  const auto exact = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_LE(worst_error(simd().softplus, exact, evenly(-80.0, 80.0, 400000), true), 5e-7);
  EXPECT_LE(worst_error(simd().softplus, exact, evenly(-2.0, 2.0, 400000), true), 5e-7);
  for (const float x : {20.5f, 1e4f, 3e38f}) EXPECT_EQ(first_lane(simd().softplus, x), x);
  EXPECT_EQ(first_lane(simd().softplus, -200.0f), 0.0f);
  EXPECT_TRUE(std::isnan(first_lane(simd().softplus, NAN)));
}

TEST_P(Simd, StoreBf16RoundsLikeTheScalarConversion) {
  std::mt19937 random(4);
  std::vector<uint32_t> patterns = {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u,
                                    0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                                    0x7f800001u, 0xffffffffu, 0x00000000u, 0x80000000u,
                                    0x00000001u, 0x00008000u, 0x007fffffu, 0x80018000u};
  while (patterns.size() < 100000) patterns.push_back(random());
  for (size_t i = 0; i + kLanes <= patterns.size(); i += kLanes) {
    float in[kLanes];
    uint16_t out[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) in[lane] = std::bit_cast<float>(patterns[i + lane]);
    simd().to_bf16(in, out);
    for (int lane = 0; lane < kLanes; ++lane) {
      ASSERT_EQ(out[lane], to_bfloat16(in[lane]).bits) << std::hex << patterns[i + lane];
    }
  }
}

TEST_P(Simd, ReductionsUseOneTree) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 1000.0f);
  for (int round = 0; round < 1000; ++round) {
    std::vector<float> lanes(kLanes);
    for (float& lane : lanes) lane = normal(random);
    const float highest = *std::max_element(lanes.begin(), lanes.end());
    EXPECT_EQ(simd().reduce_max(lanes.data()), highest);
    std::vector<float> tree = lanes;
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
    }
    EXPECT_EQ(simd().reduce_add(lanes.data()), tree[0]);
  }
}

TEST_P(Simd, PartialAccessTouchesOnlyTheFirstLanes) {
  for (int n = 0; n <= kLanes; ++n) {
    const std::vector<float> source(n, 3.0f);  // a sanitizer sees a read past it
    float out[kLanes];
    simd().load_partial(source.data(), n, -1.0f, out);
    for (int i = 0; i < kLanes; ++i) EXPECT_EQ(out[i], i < n ? 3.0f : -1.0f);
    const std::vector<float> full(kLanes, 5.0f);
    std::vector<float> target(kLanes, 7.0f);
    std::vector<uint16_t> halves(kLanes, 7);
    simd().store_partial(full.data(), n, target.data());
    simd().store_bf16_partial(full.data(), n, halves.data());
    for (int i = 0; i < kLanes; ++i) {
      EXPECT_EQ(target[i], i < n ? 5.0f : 7.0f);
      EXPECT_EQ(halves[i], i < n ? to_bfloat16(5.0f).bits : 7);
    }
  }
}

TEST_P(Simd, DotBf16AddsBothProductsOfAPair) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 1000; ++round) {
    uint32_t words[kLanes + 1];
    double first[kLanes + 1], second[kLanes + 1];
    for (int i = 0; i <= kLanes; ++i) {
      const BFloat16 a = to_bfloat16(normal(random)), b = to_bfloat16(normal(random));
      words[i] = a.bits | static_cast<uint32_t>(b.bits) << 16;
      first[i] = to_float(a), second[i] = to_float(b);
    }
    float acc[kLanes], before[kLanes];
    for (int i = 0; i < kLanes; ++i) acc[i] = before[i] = normal(random);
    simd().dot_bf16(words, &words[kLanes], acc);
    for (int i = 0; i < kLanes; ++i) {
      const double x = first[i] * first[kLanes], y = second[i] * second[kLanes];
      const double scale = std::abs(x) + std::abs(y) + std::abs(before[i]);
      EXPECT_NEAR(acc[i], before[i] + x + y, scale * 0x1p-22);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Simd, ::testing::ValuesIn(testing::supported_isas()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace specdec::cpu
