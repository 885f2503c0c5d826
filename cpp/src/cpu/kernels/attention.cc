#include "cpu/kernels/attention.h"

namespace specdec::cpu::SPECDEC_ISA {

AttentionKernels attention_kernels();
AttentionKernels attention_kernels() { return {}; }

}  // namespace specdec::cpu::SPECDEC_ISA
