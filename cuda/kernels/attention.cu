#include "cuda/device/target.cuh"
#include "cuda/kernels/attention.h"

namespace specdec::cuda::SPECDEC_TARGET {

AttentionKernels attention_kernels() { return {}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
