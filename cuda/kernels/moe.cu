#include "cuda/device/target.cuh"
#include "cuda/kernels/moe.h"

namespace specdec::cuda::SPECDEC_TARGET {

MoeKernels moe_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
