#include "cuda/device/target.cuh"
#include "cuda/kernels/pointwise.h"

namespace specdec::cuda::SPECDEC_TARGET {

PointwiseKernels pointwise_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
