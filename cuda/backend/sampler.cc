#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

void CudaBackend::sample(const SampleArgs&) { throw Unavailable("not built yet"); }

}  // namespace specdec::cuda
