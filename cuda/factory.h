// The only CUDA header that backend/registry.cc includes: it lists GPUs and makes backends on them.
// Defined by factory.cc, or by no_cuda.cc in a build without CUDA.
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

// Throws Unavailable, with the remedy, if there is no such GPU, it cannot be used, or this build
// has no CUDA.
std::unique_ptr<Backend> make_cuda_backend(int index, const BackendConfig& config);

bool is_emulation_built();
// The size of an emulated device; the default has room for a small model and a KV cache.
struct EmulatedSize {
  int num_multiprocessors = 4;
  int64_t memory_bytes = int64_t{2} << 30;
};
// The CUDA backend on an emulated device. Throws Unavailable in a build without it.
std::unique_ptr<Backend> make_emulated_backend(const BackendConfig& config,
                                               const EmulatedSize& size = {});

}  // namespace specdec::cuda
