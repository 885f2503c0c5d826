// NVIDIA's library for products of plain matrices. It is opened when asked for, where installed.
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
// Opens the first of these shared libraries that exists. A library that the process has open
// already (through torch, say) is found by its name alone. It stays open until the process ends.
CublasltLibrary open_cublaslt(const std::vector<std::string>& names = {"libcublasLt.so.13",
                                                                       "libcublasLt.so.12"});

// The ways are the library's algorithms for a product, in the library's order of preference.
std::unique_ptr<Gemm> make_cublaslt(const cublaslt::Api& api);

}  // namespace specdec::cuda
