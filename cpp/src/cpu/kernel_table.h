// The vector kernels of one instruction set: a struct of function pointers for each subject.
//
// This header and those it includes are read both by files compiled for the baseline and by files
// compiled once per instruction set. They hold plain aggregates and declarations only: an inline
// function (a default member initialiser makes one) could be linked from the wider set.
#pragma once

#include "cpu/kernels/attention.h"
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/prefetch_into.h"
#include "cpu/kernels/quantize.h"
#include "cpu/kernels/recurrence.h"
#include "cpu/kernels/rows.h"
#include "cpu/kernels/sampling.h"

namespace specdec::cpu {

struct KernelTable {
  LinearKernels linear;
  RowsKernels rows;
  QuantizeKernels quantize;
  EpilogueKernels epilogue;
  AttentionKernelSet attention;
  SamplingKernels sampling;
  RecurrenceKernels recurrence;
};

enum class Isa;
// `isa` must be compiled in and supported by this machine. The kernels prefetch as suits this
// machine, or as the second overload is told; sets without both variants ignore the choice.
KernelTable kernel_table(Isa isa);
KernelTable kernel_table(Isa isa, PrefetchInto into);

}  // namespace specdec::cpu
