// The ceilings of compute-bound kernels: the rate at which all threads multiply and add with
// operands that never leave their registers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/isa.h"

namespace specdec::bench {

// "float32", "bfloat16", "int8", "int4" (codes of weights, times int8): of the operands; sums are
// float32 or integers.
struct MatrixPeak {
  std::string operands;
  std::string instruction;
  double flops_per_second = 0;  // a multiplication and an addition are two
};

// The best rate for each kind of operands among the instructions the instruction set has; kinds it
// has no instruction for are left out.
std::vector<MatrixPeak> measure_matrix_peaks(cpu::Isa isa, ThreadPool& pool, int samples);

// The rate a kernel over such operands is held against: the highest peak among these operands and
// those they can be widened to (int4 to int8, any to float32). 0 when there is none.
double peak_for(const std::vector<MatrixPeak>& peaks, std::string_view operands);

}  // namespace specdec::bench
