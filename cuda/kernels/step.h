// What strings the passes of a step together on the device.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct StepKernels {};

namespace native {
StepKernels step_kernels();
}
namespace emulated {
StepKernels step_kernels();
}

}  // namespace specdec::cuda
