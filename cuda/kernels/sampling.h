// From logits to tokens.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct SamplingKernels {};

namespace native {
SamplingKernels sampling_kernels();
}
namespace emulated {
SamplingKernels sampling_kernels();
}

}  // namespace specdec::cuda
