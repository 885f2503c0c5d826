#include "cuda/device/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

StepKernels step_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
