#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

void CudaBackend::moe(const MoeArgs&) { throw Unavailable("not built yet"); }

}  // namespace specdec::cuda
