// Mixture of experts: routing, and the experts' products.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct MoeKernels {};

namespace native {
MoeKernels moe_kernels();
}
namespace emulated {
MoeKernels moe_kernels();
}

}  // namespace specdec::cuda
