#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

std::unique_ptr<PackedLinear> CudaBackend::pack_linear(const PackArgs&) {
  throw Unavailable("not built yet");
}

void CudaBackend::linear(const LinearArgs&) { throw Unavailable("not built yet"); }

void CudaBackend::activated_linear(const ActivatedLinearArgs&) {
  throw Unavailable("not built yet");
}

void CudaBackend::project_qkv(const QkvArgs&) { throw Unavailable("not built yet"); }

}  // namespace specdec::cuda
