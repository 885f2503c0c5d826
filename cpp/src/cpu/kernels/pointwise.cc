#include "cpu/kernels/pointwise.h"

namespace specdec::cpu::SPECDEC_ISA {

PointwiseKernels pointwise_kernels();
PointwiseKernels pointwise_kernels() { return {}; }

}  // namespace specdec::cpu::SPECDEC_ISA
