// Plain aggregates only: see kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

struct PointwiseKernels {};

}  // namespace specdec::cpu
