#include "cuda/gemm/gemms.h"

#include <utility>

#include "core/str_cat.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/cutlass.h"

namespace specdec::cuda {

FoundGemms find_gemms(const DeviceProperties& properties) {
  FoundGemms found;
  if (std::unique_ptr<Gemm> cutlass = make_cutlass(properties)) {
    found.gemms.push_back(std::move(cutlass));
  } else {
    found.absent.push_back(str_cat("cutlass: compute capability ",
                                   properties.compute_capability / 10, ".",
                                   properties.compute_capability % 10, ", built ", cutlass_note()));
  }
  const CublasltLibrary library = open_cublaslt();
  if (library.problem.empty()) {
    found.gemms.push_back(make_cublaslt(library.api));
  } else {
    found.absent.push_back(str_cat("cublasLt: ", library.problem));
  }
  return found;
}

}  // namespace specdec::cuda
