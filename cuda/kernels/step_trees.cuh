// The kernels that grow trees on the device.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

void grow_trees(Stream& stream, const StepParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
