// The emulation catches each planted fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/gpu/rehearsal_stream.h"
#include "specdec/error.h"
#include "testing/device_kinds.h"
#include "testing/thrown.h"
#include "testing/values.h"
#include "tests/cuda/emulation/emulation_kernels.h"

#ifdef SPECDEC_CUDA_EMULATION

namespace specdec::cuda::testing {
namespace {

using specdec::testing::counting;
using ::testing::ValuesIn;

std::vector<DeviceKind> emulated_kinds() {
  return {DeviceKind::kEmulatedForward, DeviceKind::kEmulatedReverse, DeviceKind::kEmulatedRandom};
}

class PlantedFaultTest : public CudaDeviceTest {
 protected:
  EmulationKernels run() const { return emulated::emulation_kernels(); }
  FaultyKernels faulty() const { return emulated::faulty_kernels(); }

  // The message of the DeviceError that waiting for the stream throws.
  std::string error_of_stream() {
    try {
      stream().synchronize();
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "none";
  }
};

void expect_mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

TEST(PlantedFault, AMissingBarrierGivesAWrongResultUnderSomeSchedule) {
  int num_wrong = 0;
  for (const DeviceKind kind : emulated_kinds()) {
    const std::unique_ptr<Device> device = make_device(kind);
    const std::unique_ptr<Stream> stream = device->make_stream();
    std::vector<float> values = counting(128);
    Buffer input = device->allocate(128 * sizeof(float), "test");
    Buffer output = device->allocate(128 * sizeof(float), "test");
    stream->copy_to_device(input.data(), values.data(), input.size_bytes());
    emulated::faulty_kernels().reverse_without_barrier(*stream, input.as<float>(),
                                                       output.as<float>(), 128);
    std::vector<float> result(128);
    stream->copy_to_host(result.data(), output.data(), output.size_bytes());
    stream->synchronize();
    num_wrong += !std::equal(values.rbegin(), values.rend(), result.begin());
  }
  EXPECT_GE(num_wrong, 1);
}

#ifdef __SANITIZE_ADDRESS__
TEST_P(PlantedFaultTest, AWritePastTheEndIsCaught) {
  Buffer values = allocate<float>(100);
  const auto write = [&] {
    faulty().write_past_end(stream(), values.as<float>(), 100);
    stream().synchronize();
  };
  EXPECT_DEATH(write(), "heap-buffer-overflow");
}
TEST_P(PlantedFaultTest, AWritePastSharedMemoryIsCaught) {
  const auto write = [&] {
    faulty().write_past_shared(stream());
    stream().synchronize();
  };
  EXPECT_DEATH(write(), "heap-buffer-overflow");
}
TEST_P(PlantedFaultTest, MisalignedLoadsAndStoresAreCaught) {
  Buffer data = allocate<float>(16);
  for (const AlignedAccess access : {AlignedAccess::kLoad, AlignedAccess::kStore}) {
    const auto run_kernel = [&] {
      faulty().misaligned(stream(), static_cast<float*>(data.data()), access);
      stream().synchronize();
    };
    EXPECT_DEATH(run_kernel(), "misaligned address");
  }
}
#else
TEST_P(PlantedFaultTest, AWritePastTheEndIsCaught) {
  Buffer values = device().allocate(400, "one hundred floats");
  faulty().write_past_end(stream(), values.as<float>(), 100);
  expect_mentions(error_of_stream(), {"write_past_end", "one hundred floats"});
}
TEST_P(PlantedFaultTest, APrefetchPastTheEndIsCaught) {
  Buffer values = device().allocate(400, "one hundred floats");
  faulty().prefetch(stream(), values.as<float>(), 100);
  stream().synchronize();
  faulty().prefetch(stream(), values.as<float>(), 104);
  expect_mentions(error_of_stream(), {"prefetch", "416 bytes that are not in one piece"});
}
TEST_P(PlantedFaultTest, APrefetchOfOtherThanWholePiecesIsCaught) {
  Buffer values = device().allocate(400, "one hundred floats");
  faulty().prefetch(stream(), values.as<float>() + 1, 8);
  expect_mentions(error_of_stream(), {"prefetch", "no multiple of 16"});
}
TEST_P(PlantedFaultTest, AKernelMayNotBeGivenHostMemory) {
  std::vector<int> values(64);
  EXPECT_THROW(run().increment(stream(), values.data(), 64), DeviceError);
  Buffer pinned = device().allocate_pinned(64 * sizeof(int), "test");
  run().increment(stream(), pinned.as<int>(), 64);
  stream().synchronize();
  EXPECT_EQ(pinned.as<int>()[63], 1);
}
TEST_P(PlantedFaultTest, AHostThatTouchesDeviceMemoryDies) {
  const Buffer values = upload(counting(100));
  EXPECT_EXIT(std::exit(values.as<float>()[5] > 0.0f), ::testing::KilledBySignal(SIGSEGV), "");
}
TEST_P(PlantedFaultTest, AWritePastSharedMemoryIsCaught) {
  faulty().write_past_shared(stream());
  expect_mentions(error_of_stream(), {"write_past_shared", "255 bytes of shared memory"});
}
#endif

TEST_P(PlantedFaultTest, DifferentWarpOperationsAreAnError) {
  faulty().different_warp_operations(stream());
  expect_mentions(error_of_stream(),
                  {"kernel different_warp_operations", "__syncwarp", "__shfl_sync"});
}

TEST_P(PlantedFaultTest, ALaneThatNeverComesIsNamed) {
  faulty().lane_that_never_comes(stream());
  expect_mentions(error_of_stream(), {"kernel lane_that_never_comes", "threads 32-36 in __ballot",
                                      "threads 37-37 finished", "mask 0xffffffff"});
}

TEST_P(PlantedFaultTest, AMaskWithoutTheOwnLaneIsAnError) {
  faulty().mask_without_own_lane(stream());
  expect_mentions(error_of_stream(), {"mask_without_own_lane", "__ballot_sync", "own lane"});
}

TEST_P(PlantedFaultTest, ABarrierThatTooFewReachIsNamed) {
  faulty().barrier_of_too_few(stream());
  expect_mentions(error_of_stream(), {"threads 0-63 in named_barrier", "__syncthreads"});
}

TEST_P(PlantedFaultTest, ReadingBeforeThePreviousKernelIsDoneGivesAnOldValue) {
  Buffer values = upload(std::vector<int>(64, 5));
  run().increment(stream(), values.as<int>(), 64);
  faulty().read_before_previous(stream(), values.as<int>(), 64);
  EXPECT_EQ(download<int>(values), std::vector<int>(64, 6)) << "7 would be right";
}

// Reading results of two kernels back, as attention reads lengths, is right if the kernel between
// lets the reader start after its own wait, or if the launch declares the early read.
TEST_P(PlantedFaultTest, ReadingAheadBehindAnEarlyStartGivesAnOldValue) {
  for (const bool early : {false, true}) {
    for (const bool declared : {false, true}) {
      Buffer values = upload(std::vector<int>(64, 5));
      Buffer seen = upload(std::vector<int>(64, 0));
      run().idle(stream(), {.grid = {1}, .block = {32}});
      run().increment(stream(), values.as<int>(), 64);
      run().pass_on(stream(), early, early);
      run().copy_ahead(stream(), values.as<int>(), seen.as<int>(), 64, declared);
      const int expected = early && !declared ? 5 : 6;
      EXPECT_EQ(download<int>(seen), std::vector<int>(64, expected))
          << "early " << early << ", declared " << declared;
    }
  }
}

// lets_next_start_early must say what the kernel does.
TEST_P(PlantedFaultTest, LettingTheNextStartEarlyMustBeDeclared) {
  for (const bool early : {false, true}) run().pass_on(stream(), early, /*declared=*/early);
  stream().synchronize();
  run().pass_on(stream(), /*early=*/true, /*declared=*/false);
  expect_mentions(error_of_stream(), {"pass_on", "let_next_start() before", "launched without"});
}

TEST_P(PlantedFaultTest, WhatIsDeclaredToLetTheNextStartEarlyMustDoSo) {
  run().pass_on(stream(), /*early=*/false, /*declared=*/true);
  expect_mentions(error_of_stream(), {"pass_on", "without let_next_start()", "launched with lets"});
}

// A graph starts when all earlier work is done, so its first kernel reads no old value.
TEST_P(PlantedFaultTest, TheFirstKernelOfAGraphStartsLate) {
  Buffer values = upload(std::vector<int>(64, 5));
  Buffer seen = upload(std::vector<int>(64, 0));
  const auto work = [&] {
    run().copy_ahead(stream(), values.as<int>(), seen.as<int>(), 64, false);
    run().increment(stream(), values.as<int>(), 64);
  };
  work();  // loads the kernels
  stream().synchronize();
  stream().begin_capture();
  work();
  const std::unique_ptr<Graph> graph = stream().end_capture();
  for (int expected : {6, 7}) {
    stream().launch(*graph);
    stream().launch(*graph);
    EXPECT_EQ(download<int>(values), std::vector<int>(64, 2 * expected - 4));
    EXPECT_EQ(download<int>(seen), std::vector<int>(64, 2 * expected - 5));
  }
}

TEST_P(PlantedFaultTest, EveryThreadMustWaitForThePreviousKernel) {
  faulty().never_waits_for_previous(stream());
  expect_mentions(error_of_stream(), {"never_waits_for_previous", "thread 5", "overlaps_previous"});
}

TEST_P(PlantedFaultTest, CopiesThatNobodyWaitedForAreNotThere) {
  const Buffer input = upload(counting(256));
  Buffer output = allocate<float>(256);
  faulty().copy_async_without_wait(stream(), input.as<float>(), output.as<float>(), 256);
  for (const float value : download<float>(output)) EXPECT_TRUE(std::isnan(value));
  faulty().copy_bulk_without_wait(stream(), input.as<float>(), output.as<float>(), 256);
  int num_missing = 0;
  for (const float value : download<float>(output)) num_missing += std::isnan(value);
  EXPECT_GT(num_missing, 0);
}

TEST_P(PlantedFaultTest, StaticSharedMemoryIsLeftRoom) {
  const auto most_bytes = static_cast<size_t>(device().properties().max_shared_bytes_per_block);
  const size_t bytes = most_bytes - kMaxStaticSharedBytes + 1;
  const auto launch = [&] {
    run().idle(stream(), {.grid = {1}, .block = {32}, .shared_bytes = bytes});
  };
  expect_mentions(specdec::testing::error_of<DeviceError>(launch).what(),
                  {"kernel idle", std::to_string(bytes)});
}

TEST_P(PlantedFaultTest, MisalignedAddressesAreFaults) {
  for (const AlignedAccess access :
       {AlignedAccess::kLoadStreaming, AlignedAccess::kCopyAsyncFrom, AlignedAccess::kCopyAsyncTo,
        AlignedAccess::kBulkCopyFrom, AlignedAccess::kBulkCopyTo, AlignedAccess::kMbarrier,
        AlignedAccess::kLdmatrix, AlignedAccess::kWgmmaTile}) {
    const std::unique_ptr<Device> failing = make_device(GetParam());
    const std::unique_ptr<Stream> queue = failing->make_stream();
    Buffer data = failing->allocate(64, "test");
    faulty().misaligned(*queue, static_cast<float*>(data.data()), access);
    expect_mentions(specdec::testing::error_of<DeviceError>([&] { queue->synchronize(); }).what(),
                    {"kernel misaligned", "no multiple of"});
  }
}

TEST_P(PlantedFaultTest, AMissingArrivalIsADeadlock) {
  faulty().mbarrier_without_arrival(stream());
  expect_mentions(error_of_stream(), {"mbarrier_without_arrival", "mbarrier_wait"});
}

TEST_P(PlantedFaultTest, WaitingForABlockThatIsNotResidentIsALivelock) {
  Buffer flags = allocate<uint32_t>(4);
  run().chain(stream(), flags.as<uint32_t>(), 4, false);
  // In order of block numbers the kernel happens to work.
  if (GetParam() == DeviceKind::kEmulatedForward) {
    EXPECT_EQ(error_of_stream(), "none");
  } else if (GetParam() == DeviceKind::kEmulatedReverse) {
    expect_mentions(error_of_stream(), {"chain", "never comes"});
  }
}

TEST_P(PlantedFaultTest, NothingHappensBeforeTheHostWaits) {
  Buffer values = upload(std::vector<int>(64, 5));
  std::vector<int> result(64, -1);
  run().increment(stream(), values.as<int>(), 64);
  stream().copy_to_host(result.data(), values.data(), values.size_bytes());
  EXPECT_EQ(result, std::vector<int>(64, -1)) << "read too early";
  stream().synchronize();
  EXPECT_EQ(result, std::vector<int>(64, 6));

  std::fill(result.begin(), result.end(), 1);
  stream().copy_to_device(values.data(), result.data(), values.size_bytes());
  std::fill(result.begin(), result.end(), 2);  // too early
  EXPECT_EQ(download<int>(values), std::vector<int>(64, 2)) << "1 was meant";
}

TEST_P(PlantedFaultTest, AFailedDeviceGoesOnFailing) {
  faulty().lane_that_never_comes(stream());
  EXPECT_THROW(stream().synchronize(), DeviceError);
  EXPECT_THROW(stream().synchronize(), DeviceError);
  EXPECT_THROW(device().allocate(16, "test"), DeviceError);
}

TEST_P(PlantedFaultTest, CopiesMustStayInOnePieceOfDeviceMemory) {
  Buffer values = allocate<float>(16);
  std::vector<float> host(17);
  EXPECT_THROW(stream().copy_to_device(values.data(), host.data(), 17 * 4), DeviceError);
  EXPECT_THROW(stream().copy_to_host(host.data(), host.data(), 4), DeviceError);
}

TEST_P(PlantedFaultTest, CapturedCopiesNeedPinnedMemory) {
  Buffer values = allocate<float>(16);
  std::vector<float> host(16);
  stream().begin_capture();
  EXPECT_THROW(stream().copy_to_device(values.data(), host.data(), 64), DeviceError);
  EXPECT_THROW(stream().copy_to_host(host.data(), values.data(), 64), DeviceError);
  EXPECT_EQ(stream().end_capture()->num_nodes(), 0);
}

TEST_P(PlantedFaultTest, KernelsAreLoadedBeforeACapture) {
  const EmulationKernels kernels = emulated::emulation_kernels();
  Buffer values = allocate<int>(64);
  RehearsalStream rehearsal(device().make_stream());
  rehearsal.begin_capture();
  EXPECT_THROW(kernels.increment(rehearsal, values.as<int>(), 64), DeviceError);
  rehearsal.end_capture();
  rehearsal.set_rehearsing(true);
  kernels.increment(rehearsal, values.as<int>(), 64);
  rehearsal.set_rehearsing(false);
  rehearsal.begin_capture();
  kernels.increment(rehearsal, values.as<int>(), 64);
  EXPECT_EQ(rehearsal.end_capture()->num_nodes(), 1);
  EXPECT_EQ(download<int>(values), std::vector<int>(64, 0));
}

TEST_P(PlantedFaultTest, ARehearsalFindsLaunchesThatAreImpossible) {
  RehearsalStream rehearsal(device().make_stream());
  rehearsal.set_rehearsing(true);
  const size_t most = static_cast<size_t>(device().properties().max_shared_bytes_per_block);
  EXPECT_THROW(emulated::emulation_kernels().idle(
                   rehearsal, {.grid = {}, .block = {}, .shared_bytes = most + 1}),
               DeviceError);
}

INSTANTIATE_TEST_SUITE_P(Emulated, PlantedFaultTest, ValuesIn(emulated_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing

#endif  // SPECDEC_CUDA_EMULATION
