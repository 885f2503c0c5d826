#include "cuda/device/target.cuh"
#include "cuda/kernels/projection.h"

namespace specdec::cuda::SPECDEC_TARGET {

ProjectionKernels projection_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
