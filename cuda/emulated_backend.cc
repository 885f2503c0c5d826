#include <memory>
#include <utility>

#include "cuda/backend/cuda_backend.h"
#include "cuda/emulation/emulated_device.h"
#include "cuda/factory.h"
#include "cuda/gpu/launch_settings.h"

namespace specdec::cuda {

bool is_emulation_built() { return true; }

std::unique_ptr<Backend> make_emulated_backend(const BackendConfig& config,
                                               const EmulatedSize& size) {
  std::unique_ptr<Device> device = make_emulated_device(
      {.num_multiprocessors = size.num_multiprocessors, .memory_bytes = size.memory_bytes});
  device->set_launch_settings(launch_settings_of_environment());
  return std::make_unique<CudaBackend>(std::move(device), emulated::kernel_table(),
                                       config.act_dtype, CudaOptions::of(config));
}

}  // namespace specdec::cuda
