#include "cuda/factory.h"
#include "specdec/error.h"

namespace specdec::cuda {

bool is_emulation_built() { return false; }

std::unique_ptr<Backend> make_emulated_backend(const BackendConfig&, const EmulatedSize&) {
  throw Unavailable(
      "device \"emulated\" runs the CUDA kernels on the CPU, for tests only, and is not in this "
      "build; build with -DSPECDEC_CUDA_EMULATION=ON for it, or use device=\"cpu\"");
}

}  // namespace specdec::cuda
