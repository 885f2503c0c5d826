// Verification by distributions.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/verify.h"

namespace specdec::cuda::SPECDEC_TARGET {

void weigh_drafts(Stream& stream, const WeighParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
