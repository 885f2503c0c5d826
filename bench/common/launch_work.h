// What a launch has to do, as its kernel's parameters say it.
#pragma once

#include "common/report.h"
#include "cuda/gpu/device.h"

namespace specdec::bench {

// Of the kernels that take most of a pass: products, attention, and the choice of experts. Others
// have none. bench/gpu/launches.py works out bytes and seconds from these figures.
Figures work_of(const cuda::KernelLaunch& launch);

}  // namespace specdec::bench
