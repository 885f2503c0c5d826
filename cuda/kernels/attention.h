// Attention over the paged cache, and moves within it.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct AttentionKernels {};

namespace native {
AttentionKernels attention_kernels();
}
namespace emulated {
AttentionKernels attention_kernels();
}

}  // namespace specdec::cuda
