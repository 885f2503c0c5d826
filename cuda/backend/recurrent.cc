// Short convolutions, linear recurrences and gated norms of the CUDA backend.
#include "core/check.h"
#include "cuda/backend/cuda_backend.h"

namespace specdec::cuda {

// The engine refuses models with recurrent layers on GPUs.
void CudaBackend::short_conv(const ShortConvArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

void CudaBackend::recurrence(const RecurrenceArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

void CudaBackend::gated_norm(const GatedNormArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

}  // namespace specdec::cuda
