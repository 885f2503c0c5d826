// The interface of the sources compiled with CUTLASS to cutlass.cc, which is compiled without.
#pragma once

#include <vector>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda::native {

// A tile shape.
struct CutlassWay {
  const char* name;
  void (*launch)(Stream& stream, int num_multiprocessors, const GemmParams& params);
};

// One source per dtype, because they take long to compile.
std::vector<CutlassWay> cutlass_bf16();
std::vector<CutlassWay> cutlass_f16();

}  // namespace specdec::cuda::native
