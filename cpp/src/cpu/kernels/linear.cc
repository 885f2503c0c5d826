#include "cpu/kernels/linear.h"

namespace specdec::cpu::SPECDEC_ISA {

LinearKernels linear_kernels();
LinearKernels linear_kernels() { return {nullptr, nullptr}; }

}  // namespace specdec::cpu::SPECDEC_ISA
