// Devices, streams and graphs, on every kind of device.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/device_kinds.h"
#include "testing/thrown.h"
#include "testing/values.h"
#include "tests/cuda/emulation/emulation_kernels.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::counting;
using ::testing::ValuesIn;

class DeviceTest : public CudaDeviceTest {
 protected:
  EmulationKernels run() const { return SPECDEC_KERNELS_FOR(GetParam(), emulation_kernels); }
};

TEST_P(DeviceTest, BlocksSumTheirElements) {
  constexpr int kBlocks = 3;
  constexpr int kCount = 1000;
  std::vector<float> values(kBlocks * kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  const Buffer input = upload(values);
  Buffer output = allocate<float>(kBlocks);
  run().sum(stream(), input.as<float>(), output.as<float>(), kBlocks, kCount);
  const std::vector<float> sums = download<float>(output);
  for (int block = 0; block < kBlocks; ++block) {
    const auto begin = values.begin() + block * kCount;
    EXPECT_EQ(sums[static_cast<size_t>(block)], std::accumulate(begin, begin + kCount, 0.0f));
  }
}

TEST_P(DeviceTest, MemoryIsZeroed) {
  const Buffer buffer = device().allocate(1000, "test");
  EXPECT_EQ(download<char>(buffer), std::vector<char>(1000, 0));
}

TEST_P(DeviceTest, OverlappingKernelsSeeWhatIsBeforeThem) {
  constexpr int kCount = 300;
  Buffer values = upload(std::vector<int>(kCount, 5));
  for (int i = 0; i < 4; ++i) run().increment(stream(), values.as<int>(), kCount);
  EXPECT_EQ(download<int>(values), std::vector<int>(kCount, 9));
}

TEST_P(DeviceTest, BlocksOfACooperativeLaunchMayWaitForEachOther) {
  Buffer flags = allocate<uint32_t>(4);
  run().chain(stream(), flags.as<uint32_t>(), 4, true);
  EXPECT_EQ(download<uint32_t>(flags), (std::vector<uint32_t>{1, 2, 3, 4}));
}

TEST_P(DeviceTest, AsynchronousCopiesLandWhenWaitedFor) {
  const std::vector<float> values = counting(1024);
  const Buffer input = upload(values);
  Buffer output = allocate<float>(values.size());
  run().copy_async(stream(), input.as<float>(), output.as<float>(), 1024);
  EXPECT_EQ(download<float>(output), values);
  if (device().properties().compute_capability < 90) return;
  stream().fill(output.data(), 0, output.size_bytes());
  run().copy_bulk(stream(), input.as<float>(), output.as<float>(), 1024);
  EXPECT_EQ(download<float>(output), values);
}

TEST_P(DeviceTest, CopiesAndFills) {
  Buffer buffer = upload(counting(8));
  auto* data = buffer.as<float>();
  stream().copy(data + 4, data, 2 * sizeof(float));
  stream().fill(data + 6, 0, sizeof(float));
  EXPECT_EQ(download<float>(buffer), (std::vector<float>{1, 2, 3, 4, 1, 2, 0, 8}));
}

TEST_P(DeviceTest, GraphsRunAgainAndReadPinnedMemoryAnew) {
  constexpr int kCount = 64;
  Buffer pinned = device().allocate_pinned(kCount * sizeof(int), "test");
  Buffer values = allocate<int>(kCount);
  run().increment(stream(), values.as<int>(), kCount);  // once outside of a capture, as engines do
  stream().synchronize();
  stream().begin_capture();
  EXPECT_TRUE(stream().is_capturing());
  stream().copy_to_device(values.data(), pinned.data(), pinned.size_bytes());
  run().increment(stream(), values.as<int>(), kCount);
  run().increment(stream(), values.as<int>(), kCount);
  const std::unique_ptr<Graph> graph = stream().end_capture();
  EXPECT_EQ(graph->num_nodes(), 3);
  EXPECT_EQ(download<int>(values), std::vector<int>(kCount, 1)) << "capturing is not doing";
  for (int round = 0; round < 3; ++round) {
    std::fill_n(pinned.as<int>(), kCount, 10 * round);
    stream().launch(*graph);
    EXPECT_EQ(download<int>(values), std::vector<int>(kCount, 10 * round + 2));
  }
}

TEST_P(DeviceTest, EventsAreDoneWhenTheWorkBeforeThemIs) {
  constexpr int kCount = 64;
  Buffer values = allocate<int>(kCount);
  Buffer pinned = device().allocate_pinned(values.size_bytes(), "test");
  const std::unique_ptr<Event> begin = device().make_event();
  const std::unique_ptr<Event> end = device().make_event();
  EXPECT_TRUE(begin->is_done()) << "never recorded";
  stream().record(*begin);
  run().increment(stream(), values.as<int>(), kCount);
  stream().copy_to_host(pinned.data(), values.data(), values.size_bytes());
  stream().record(*end);
  end->wait();
  EXPECT_TRUE(end->is_done());
  EXPECT_EQ(pinned.as<int>()[kCount - 1], 1);
  EXPECT_GT(device().seconds_between(*begin, *end), 0.0);
  stream().record(*end);
  int polls = 0;
  while (!end->is_done()) ++polls;
  EXPECT_LT(polls, 1000000000);
}

TEST_P(DeviceTest, OutOfMemoryNamesThePurpose) {
  const int64_t before = device().free_bytes();
  const auto too_much = static_cast<size_t>(device().info().memory_bytes) + 1;
  const std::string message = specdec::testing::error_of<OutOfMemory>([&] {
                                device().allocate(too_much, "the KV cache");
                              }).what();
  EXPECT_NE(message.find("the KV cache"), std::string::npos) << message;
  if (!is_emulated()) return;  // a GPU's free memory changes with other programs
  {
    const Buffer some = device().allocate(8 << 20, "test");
    EXPECT_LE(device().free_bytes(), before - (8 << 20));
  }
  EXPECT_EQ(device().free_bytes(), before);
}

TEST_P(DeviceTest, LaunchesOfNoPossibleSizeAreRefused) {
  const auto most_shared = static_cast<size_t>(device().properties().max_shared_bytes_per_block);
  const auto num_processors = static_cast<unsigned>(device().properties().num_multiprocessors);
  const std::vector<LaunchConfig> impossible = {
      {.grid = {0}, .block = {32}},
      {.grid = {1, 65536}, .block = {32}},
      {.grid = {1, 1, 65536}, .block = {32}},
      {.grid = {1}, .block = {0}},
      {.grid = {1}, .block = {1025}},
      {.grid = {1}, .block = {32, 32, 2}},
      {.grid = {1}, .block = {1, 1, 65}},
      {.grid = {1}, .block = {32}, .shared_bytes = most_shared + 1},
      {.grid = {2 * num_processors + 1}, .block = {1024}, .cooperative = true},
      {.grid = {num_processors + 1},
       .block = {32},
       .shared_bytes = most_shared - kMaxStaticSharedBytes,
       .blocks_meet = true},
      {.grid = {num_processors + 1},
       .block = {32},
       .shared_bytes = most_shared - kMaxStaticSharedBytes,
       .cooperative = true},
  };
  for (size_t i = 0; i < impossible.size(); ++i) {
    const std::string message = specdec::testing::error_of<DeviceError>([&] {
                                  run().idle(stream(), impossible[i]);
                                }).what();
    EXPECT_NE(message.find("kernel idle"), std::string::npos) << i << ": " << message;
  }
  // The largest launches run; the device has not failed.
  run().idle(stream(), {.grid = {1, 65535}, .block = {1}});
  run().idle(
      stream(),
      {.grid = {1}, .block = {16, 1, 64}, .shared_bytes = most_shared - kMaxStaticSharedBytes});
  run().idle(stream(), {.grid = {num_processors}, .block = {1024}, .cooperative = true});
  stream().synchronize();
}

TEST_P(DeviceTest, CapturesRefuseWhatCannotBeCaptured) {
  const std::unique_ptr<Event> event = device().make_event();
  stream().record(*event);
  stream().synchronize();
  const std::vector<std::function<void()>> forbidden = {
      [&] { stream().synchronize(); },
      [&] { device().allocate(16, "test"); },
      [&] { stream().record(*event); },
      [&] { stream().begin_capture(); },
  };
  for (size_t i = 0; i < forbidden.size(); ++i) {
    const std::unique_ptr<Stream> other = device().make_stream();
    stream().begin_capture();
    EXPECT_THROW(forbidden[i](), DeviceError) << i;
    // On a GPU the capture is invalid now; either way it ends.
    try {
      stream().end_capture();
    } catch (const DeviceError&) {
    }
    stream().synchronize();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
