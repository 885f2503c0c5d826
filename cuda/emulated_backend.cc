#include <memory>
#include <utility>

#include "cuda/backend/cuda_backend.h"
#include "cuda/emulation/emulated_device.h"
#include "cuda/factory.h"
#include "cuda/gpu/launch_settings.h"

namespace specdec::cuda {

bool is_emulation_built() { return true; }

namespace {

// Enough for a small model and a KV cache, and quickly zeroed.
constexpr int64_t kMemoryBytes = int64_t{2} << 30;

}  // namespace

std::unique_ptr<Backend> make_emulated_backend(const BackendConfig& config) {
  std::unique_ptr<Device> device = make_emulated_device({.memory_bytes = kMemoryBytes});
  device->set_launch_settings(launch_settings_of_environment());
  return std::make_unique<CudaBackend>(std::move(device), emulated::kernel_table(),
                                       config.act_dtype, CudaOptions::of(config));
}

}  // namespace specdec::cuda
