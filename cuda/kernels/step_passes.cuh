// The kernels that make the rows of a pass.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

void make_rows(Stream& stream, PassRows kind, const StepParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
