// The work of a launch, from its kernel's parameters.
#pragma once

#include "common/report.h"
#include "cuda/gpu/device.h"

namespace specdec::bench {

// Covers the kernels that take most of a pass: products, attention, and the choice of experts;
// empty for others. bench/gpu/launches.py computes bytes and seconds from these figures.
Figures work_of(const cuda::KernelLaunch& launch);

}  // namespace specdec::bench
