#include "cpu/kernel_table.h"

namespace specdec::cpu::SPECDEC_ISA {

// Each in the file of its subject.
LinearKernels linear_kernels();
RowsKernels rows_kernels();
QuantizeKernels quantize_kernels();
EpilogueKernels epilogue_kernels();
AttentionKernelSet attention_kernels();
SamplingKernels sampling_kernels();

KernelTable kernel_set();
KernelTable kernel_set() {
  return {linear_kernels(),   rows_kernels(),      quantize_kernels(),
          epilogue_kernels(), attention_kernels(), sampling_kernels()};
}

}  // namespace specdec::cpu::SPECDEC_ISA
