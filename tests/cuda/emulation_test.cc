#include <gtest/gtest.h>

#include <vector>

#include "testing/cuda_devices.h"
#include "tests/cuda/smoke_kernels.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

class SmokeTest : public CudaDeviceTest {
 protected:
  SmokeKernels smoke() const { return SPECDEC_KERNELS_FOR(GetParam(), smoke_kernels); }
};

TEST_P(SmokeTest, BlocksSumTheirElements) {
  constexpr int kBlocks = 3;
  constexpr int kCount = 1000;
  std::vector<float> values(kBlocks * kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  const Buffer input = upload(values);
  Buffer output = allocate<float>(kBlocks);
  smoke().sum(stream(), input.as<float>(), output.as<float>(), kBlocks, kCount);
  const std::vector<float> sums = download<float>(output);
  for (int block = 0; block < kBlocks; ++block) {
    float expected = 0;
    for (int i = 0; i < kCount; ++i) expected += values[static_cast<size_t>(block * kCount + i)];
    EXPECT_EQ(sums[static_cast<size_t>(block)], expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SmokeTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
