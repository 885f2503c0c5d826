#include "core/str_cat.h"
#include "cuda/factory.h"
#include "specdec/error.h"

namespace specdec::cuda {

bool is_built() { return false; }

std::string build_note() { return SPECDEC_CUDA_NOTE; }

std::vector<DeviceInfo> list_cuda_devices() { return {}; }

std::string gpu_problem() {
  return str_cat("this build has no CUDA (", SPECDEC_CUDA_NOTE, "); build with -DSPECDEC_CUDA=ON ",
                 "where the CUDA toolkit is installed");
}

std::unique_ptr<Backend> make_cuda_backend(int index, const BackendConfig&) {
  throw Unavailable(str_cat("device cuda:", index, " is not available: ", gpu_problem(),
                            ". device=\"cpu\" runs without a GPU"));
}

}  // namespace specdec::cuda
