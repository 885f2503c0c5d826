// NVIDIA's library for such products, where it is installed: it is opened when it is asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/gemm/cublaslt_abi.h"
#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct CublasltLibrary {
  cublaslt::Api api;
  std::string problem;  // why it cannot be used; empty: it can
};
// Opens the first of these shared libraries that there is; one the process has open already (by
// torch, say) is found by its name alone. Stays open until the process ends.
CublasltLibrary open_cublaslt(const std::vector<std::string>& names = {"libcublasLt.so.13",
                                                                       "libcublasLt.so.12"});

// Its algorithms for a product are the ways, best first as the library thinks.
std::unique_ptr<Gemm> make_cublaslt(const cublaslt::Api& api);

}  // namespace specdec::cuda
