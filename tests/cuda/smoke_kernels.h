// Launchers of smoke_kernels.cu, per target.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct SmokeKernels {
  // sums[b] = values[b * count] + ... + values[b * count + count - 1]
  void (*sum)(Stream& stream, const float* values, float* sums, int num_blocks, int count);
};

namespace native {
SmokeKernels smoke_kernels();
}
namespace emulated {
SmokeKernels smoke_kernels();
}

}  // namespace specdec::cuda
