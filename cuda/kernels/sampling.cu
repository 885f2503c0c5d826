#include "cuda/device/target.cuh"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda::SPECDEC_TARGET {

SamplingKernels sampling_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
