// The growth of trees on the device.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

void tree_rows(Stream& stream, const TreeRowsParams& params);
void grow_trees(Stream& stream, const GrowTreesParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
