// What backend/registry.cc knows of CUDA: the GPUs, and backends made on them. Defined by
// factory.cc, or by no_cuda.cc in a build without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "specdec/device.h"

namespace specdec::cuda {

bool is_built();
std::string build_note();  // why CUDA is absent, or the architectures it was built for

// The GPUs that the driver shows; empty without a driver.
std::vector<DeviceInfo> list_cuda_devices();
std::string gpu_problem();  // specdec::gpu_problem

// Throws Unavailable, saying what to do, when there is no such GPU, it cannot be used, or there is
// no CUDA in this build.
std::unique_ptr<Backend> make_cuda_backend(int index, const BackendConfig& config);

bool is_emulation_built();
// What an emulated device has: by default enough for a small model and a KV cache.
struct EmulatedSize {
  int num_multiprocessors = 4;
  int64_t memory_bytes = int64_t{2} << 30;
};
// The CUDA backend on an emulated device. Throws Unavailable in a build without it.
std::unique_ptr<Backend> make_emulated_backend(const BackendConfig& config,
                                               const EmulatedSize& size = {});

}  // namespace specdec::cuda
