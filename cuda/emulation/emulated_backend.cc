#include "cuda/backend/cuda_backend.h"
#include "cuda/cuda_devices.h"
#include "cuda/emulation/emulated_device.h"

namespace specdec::cuda {

bool is_emulation_built() { return true; }

std::unique_ptr<Backend> make_emulated_backend(const BackendConfig& config) {
  return std::make_unique<CudaBackend>(make_emulated_device({}), emulated::kernel_table(),
                                       config.act_dtype, CudaOptions::of(config));
}

}  // namespace specdec::cuda
