// Noise and coins on the device, against closed formulas and the host's.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "speculation/verification.h"
#include "testing/device_kinds.h"
#include "tests/cuda/common/noise_kernels.h"

namespace specdec::cuda {
namespace {

class Noise : public testing::CudaDeviceTest {
 protected:
  NoiseKernels run() const { return SPECDEC_KERNELS_FOR(GetParam(), noise_kernels); }
};

TEST_P(Noise, OfGumbelIsPreciseAtBothEnds) {
  std::vector<uint32_t> words = {0u, 1u, 2u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu};
  // Words at which 1 - v, or the exponential, comes near 1, where logarithms lose precision.
  for (uint32_t word = 0xa1d2a7d0u; word < 0xa1d2a830u; ++word) words.push_back(word);
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) words.push_back(static_cast<uint32_t>(random() >> (i % 32)));
  const int count = static_cast<int>(words.size());
  for (int i = 0; i < count; ++i) words.push_back(~words[i]);
  const Buffer in = upload(words);
  Buffer out = allocate<float>(words.size());
  run().gumbel(stream(), in.as<uint32_t>(), out.as<float>(), static_cast<int>(words.size()));
  const auto noise = download<float>(out);
  for (size_t i = 0; i < words.size(); ++i) {
    const double v = (words[i] + 0.5) * 0x1p-32;
    const double exact = -std::log(-std::log1p(-v));
    ASSERT_NEAR(noise[i], exact, 4e-7 * (1.0 + std::abs(exact))) << words[i];
  }
}

TEST_P(Noise, OfCoinsIsTheCpusAndStrictlyBetweenItsEnds) {
  constexpr int kCount = 300;
  Buffer out = allocate<double>(kCount);
  for (const int64_t position : {int64_t{0}, int64_t{77}, (int64_t{1} << 40) + 3}) {
    const uint64_t seed = 0x123456789abcdefull + static_cast<uint64_t>(position);
    run().coins(stream(), seed, position, out.as<double>(), kCount);
    const auto coins = download<double>(out);
    const UniformSource exact = step_uniforms(seed, position);
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(coins[i], exact(i, 2 * i));
      ASSERT_TRUE(coins[i] > 0.0 && coins[i] < 1.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Noise, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
