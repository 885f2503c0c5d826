// Products with weight matrices, and the packing of weights for them.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct ProjectionKernels {};

namespace native {
ProjectionKernels projection_kernels();
}
namespace emulated {
ProjectionKernels projection_kernels();
}

}  // namespace specdec::cuda
