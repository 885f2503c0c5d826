#include "cpu/kernels/sampling.h"

namespace specdec::cpu::SPECDEC_ISA {

SamplingKernels sampling_kernels();
SamplingKernels sampling_kernels() { return {}; }

}  // namespace specdec::cpu::SPECDEC_ISA
