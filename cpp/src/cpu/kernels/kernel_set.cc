#include "cpu/kernel_table.h"

namespace specdec::cpu::SPECDEC_ISA {

// Each function is defined in the file of its subject.
LinearKernels linear_kernels(PrefetchInto into);
RowsKernels rows_kernels();
RecurrenceKernels recurrence_kernels();
QuantizeKernels quantize_kernels();
EpilogueKernels epilogue_kernels();
AttentionKernelSet attention_kernels(PrefetchInto into);
SamplingKernels sampling_kernels();

KernelTable kernel_set(PrefetchInto into);
KernelTable kernel_set(PrefetchInto into) {
  return {linear_kernels(into),    rows_kernels(),     quantize_kernels(),  epilogue_kernels(),
          attention_kernels(into), sampling_kernels(), recurrence_kernels()};
}

}  // namespace specdec::cpu::SPECDEC_ISA
