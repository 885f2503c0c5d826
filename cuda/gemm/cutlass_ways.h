// What the sources compiled with CUTLASS offer to cutlass.cc, which is compiled without it.
#pragma once

#include <vector>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda::native {

// A tile shape.
struct CutlassWay {
  const char* name;
  void (*launch)(Stream& stream, int num_multiprocessors, const GemmParams& params);
};

// There is one source for each dtype, because they take long to compile.
std::vector<CutlassWay> cutlass_bf16();
std::vector<CutlassWay> cutlass_f16();

}  // namespace specdec::cuda::native
