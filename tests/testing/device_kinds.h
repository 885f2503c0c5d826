// The devices a test of CUDA code runs on: the emulation under every schedule, where it is built,
// and the GPU, where there is one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/gpu/device.h"

// Calls `table()`, a table of launchers, of the target that is right for a DeviceKind.
#if defined(SPECDEC_HAS_CUDA) && defined(SPECDEC_CUDA_EMULATION)
#define SPECDEC_KERNELS_FOR(kind, table)                                                   \
  ((kind) == ::specdec::cuda::testing::DeviceKind::kGpu ? ::specdec::cuda::native::table() \
                                                        : ::specdec::cuda::emulated::table())
#elif defined(SPECDEC_HAS_CUDA)
#define SPECDEC_KERNELS_FOR(kind, table) ((void)(kind), ::specdec::cuda::native::table())
#else
#define SPECDEC_KERNELS_FOR(kind, table) ((void)(kind), ::specdec::cuda::emulated::table())
#endif

namespace specdec::cuda::testing {

enum class DeviceKind { kEmulatedForward, kEmulatedReverse, kEmulatedRandom, kGpu };

// Prints a line about a GPU that is missing.
std::vector<DeviceKind> device_kinds();

std::unique_ptr<Device> make_device(DeviceKind kind);
// The kernels that run on it.
KernelTable kernels_for(DeviceKind kind);
std::unique_ptr<CudaBackend> make_backend(DeviceKind kind, DType act_dtype);

std::string name_of(DeviceKind kind);
inline void PrintTo(DeviceKind kind, std::ostream* out) { *out << name_of(kind); }

// Param: INSTANTIATE_TEST_SUITE_P(Devices, XTest, ValuesIn(device_kinds()), test_name).
inline std::string test_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return name_of(info.param);
}

// Those of `sizes` that a group of ranks with whole backends can have: 1 on a GPU, which all ranks
// of a test would share. There a rank's copy or allocation may wait in the driver for another
// rank's kernel, which waits for this rank.
inline std::vector<int> group_sizes(DeviceKind kind, std::vector<int> sizes) {
  if (kind == DeviceKind::kGpu) std::erase_if(sizes, [](int size) { return size > 1; });
  return sizes;
}

// Copies to the device and back; both wait for the stream.
template <class T>
Buffer upload(Device& device, Stream& stream, const std::vector<T>& values) {
  const size_t num_bytes = values.size() * sizeof(T);
  Buffer buffer = device.allocate(std::max<size_t>(1, num_bytes), "test");
  stream.copy_to_device(buffer.data(), values.data(), num_bytes);
  stream.synchronize();
  return buffer;
}
template <class T>
std::vector<T> download(Stream& stream, const Buffer& buffer) {
  // The driver may hold a lock while it copies to pageable memory. Without this wait it would hold
  // it until the stream's kernels are done, which may wait for kernels that other ranks launch.
  stream.synchronize();
  std::vector<T> values(buffer.size_bytes() / sizeof(T));
  stream.copy_to_host(values.data(), buffer.data(), values.size() * sizeof(T));
  stream.synchronize();
  return values;
}

// A fixture for tests on one device.
class CudaDeviceTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  CudaDeviceTest()
      : device_(make_device(GetParam())),
        kernels_(kernels_for(GetParam())),
        stream_(device_->make_stream()) {}

  Device& device() { return *device_; }
  const KernelTable& kernels() const { return kernels_; }
  Stream& stream() { return *stream_; }
  bool is_emulated() const { return GetParam() != DeviceKind::kGpu; }

  template <class T>
  Buffer allocate(size_t count) {
    return device_->allocate(count * sizeof(T), "test");
  }
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    return testing::upload(*device_, *stream_, values);
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer) {
    return testing::download<T>(*stream_, buffer);
  }

 private:
  std::unique_ptr<Device> device_;
  KernelTable kernels_;
  std::unique_ptr<Stream> stream_;
};

// A backend and its memory.
struct BackendWorld {
  BackendWorld() = default;
  BackendWorld(DeviceKind kind, DType dtype) : backend(make_backend(kind, dtype)) {}

  template <class T>
  Buffer allocate(size_t count) {
    return backend->allocate(count * sizeof(T), "test");
  }
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    return testing::upload(backend->device(), backend->stream(), values);
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer) {
    return testing::download<T>(backend->stream(), buffer);
  }

  std::unique_ptr<CudaBackend> backend;
};

}  // namespace specdec::cuda::testing
