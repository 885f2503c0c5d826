// The device, its streams and graphs, on every device there is; and that the emulation catches
// faults.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/gpu/rehearsal_stream.h"
#include "specdec/error.h"
#include "testing/device_kinds.h"
#include "tests/cuda/emulation/emulation_kernels.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

std::vector<float> counting(int count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

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
  run().increment(stream(), values.as<int>(), kCount);  // as engines do: once outside a capture
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
  try {
    device().allocate(too_much, "the KV cache");
    FAIL() << "was allocated";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("the KV cache"), std::string::npos) << error.what();
  }
  if (!is_emulated()) return;  // other programs take and give a GPU's memory, too
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
      {.grid = {num_processors + 1}, .block = {32}, .blocks_meet = true},
      {.grid = {num_processors + 1},
       .block = {32},
       .shared_bytes = most_shared - kMaxStaticSharedBytes,
       .cooperative = true},
  };
  for (size_t i = 0; i < impossible.size(); ++i) {
    try {
      run().idle(stream(), impossible[i]);
      ADD_FAILURE() << "was launched: " << i;
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("kernel idle"), std::string::npos) << error.what();
    }
  }
  // The largest there are; and the device has not failed.
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
    // On a GPU the capture is broken now; either way it ends.
    try {
      stream().end_capture();
    } catch (const DeviceError&) {
    }
    stream().synchronize();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, ValuesIn(device_kinds()), test_name);

#ifdef SPECDEC_CUDA_EMULATION

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

// Reading what is two kernels back, as attention reads lengths: right where the kernel between them
// lets the reader start after its own wait, or where the launch says what it does.
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

// What a launch says of the next one's start is what the kernel does.
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

// A graph begins when all before it is done, so its first kernel reads nothing old.
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
  try {
    run().idle(stream(), {.grid = {1}, .block = {32}, .shared_bytes = bytes});
    FAIL() << "was launched";
  } catch (const DeviceError& error) {
    expect_mentions(error.what(), {"kernel idle", std::to_string(bytes)});
  }
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
    try {
      queue->synchronize();
      ADD_FAILURE() << "went unnoticed: " << static_cast<int>(access);
    } catch (const DeviceError& error) {
      expect_mentions(error.what(), {"kernel misaligned", "no multiple of"});
    }
  }
}

TEST_P(PlantedFaultTest, AMissingArrivalIsADeadlock) {
  faulty().mbarrier_without_arrival(stream());
  expect_mentions(error_of_stream(), {"mbarrier_without_arrival", "mbarrier_wait"});
}

TEST_P(PlantedFaultTest, WaitingForABlockThatIsNotResidentIsALivelock) {
  Buffer flags = allocate<uint32_t>(4);
  run().chain(stream(), flags.as<uint32_t>(), 4, false);
  // In order of the blocks it happens to work.
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

#endif  // SPECDEC_CUDA_EMULATION

}  // namespace
}  // namespace specdec::cuda::testing
