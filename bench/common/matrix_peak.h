// The ceilings of compute-bound kernels: the rate at which all threads multiply and add with
// operands that never leave their registers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/isa.h"

namespace specdec::bench {

// "float32", "bfloat16", "int8": of the operands; sums are float32 or int32.
struct MatrixPeak {
  std::string operands;
  std::string instruction;
  double flops_per_second = 0;  // a multiplication and an addition are two
};

// The best rate for each kind of operands among the instructions the instruction set has; kinds it
// has no instruction for are left out.
std::vector<MatrixPeak> measure_matrix_peaks(cpu::Isa isa, ThreadPool& pool, int samples);

// The rate a kernel over such operands is held against: that of the operands, or of float32 where
// they have no instruction of their own. 0 when there is none.
double peak_for(const std::vector<MatrixPeak>& peaks, std::string_view operands);

}  // namespace specdec::bench
