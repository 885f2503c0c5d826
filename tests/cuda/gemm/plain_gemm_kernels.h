// Launchers of plain_gemm_kernels.cu, and a Gemm made of them.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct PlainGemmKernels {
  // sums (+)= rows x weights^T, one thread per sum
  void (*multiply)(Stream& stream, const GemmParams& params) = nullptr;
};

namespace native {
PlainGemmKernels plain_gemm_kernels();
}
namespace emulated {
PlainGemmKernels plain_gemm_kernels();
}

// Stands in for a library: GEMMs of plain matrices on any device.
class PlainGemm final : public Gemm {
 public:
  explicit PlainGemm(const PlainGemmKernels& kernels) : kernels_(kernels) {}

  std::string name() const override { return "plain"; }
  int num_ways(Stream&, const GemmShape&) override { return 1; }
  std::string name_of(int) const override { return "plain"; }
  void run(Stream& stream, int, const GemmParams& params) override {
    kernels_.multiply(stream, params);
  }
  size_t workspace_bytes() const override { return 256; }

 private:
  PlainGemmKernels kernels_;
};

}  // namespace specdec::cuda
