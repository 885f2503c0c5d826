// Embedding lookups and norms.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct PointwiseKernels {};

namespace native {
PointwiseKernels pointwise_kernels();
}
namespace emulated {
PointwiseKernels pointwise_kernels();
}

}  // namespace specdec::cuda
