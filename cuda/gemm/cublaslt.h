// GEMMs by cuBLASLt, which is opened at run time where it is installed.
// tests/cuda/gemm/cublaslt_test.cc checks the calls with a mock library; ProjectionChooserTest
// (tests/cuda/backend/projection_chooser_test.cc) compares results with double loops on a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/gemm/cublaslt_abi.h"
#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct CublasltLibrary {
  cublaslt::Api api;
  std::string problem;  // why the library cannot be used; empty if it can
};
// Opens the first of these shared libraries that exists. A library that the process has open
// already (through torch, say) is found by its name alone. It stays open until the process ends.
CublasltLibrary open_cublaslt(const std::vector<std::string>& names = {"libcublasLt.so.13",
                                                                       "libcublasLt.so.12"});

// Ways are the library's algorithms for a GEMM, in the library's order of preference.
std::unique_ptr<Gemm> make_cublaslt(const cublaslt::Api& api);

}  // namespace specdec::cuda
