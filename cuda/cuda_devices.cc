#include "cuda/cuda_devices.h"

#include <cuda_runtime.h>

#include "core/str_cat.h"
#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

bool is_built() { return true; }

std::string build_note() { return SPECDEC_CUDA_NOTE; }

std::vector<DeviceInfo> list_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};  // no driver, or no GPU
  std::vector<DeviceInfo> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    devices.push_back({.name = str_cat("cuda:", index),
                       .model = properties.name,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                       .num_threads = properties.multiProcessorCount,
                       .isa = str_cat(properties.major, ".", properties.minor)});
  }
  return devices;
}

std::unique_ptr<Backend> make_cuda_backend(int index, const BackendConfig& config) {
  return std::make_unique<CudaBackend>(make_cuda_device(index), native::kernel_table(),
                                       config.act_dtype);
}

}  // namespace specdec::cuda
