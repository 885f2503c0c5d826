#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "tests/cuda/gemm/plain_gemm_kernels.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 64;

template <class T>
__global__ void multiply_kernel(const GemmParams params) {
  const GemmShape& shape = params.shape;
  const int output = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (output >= shape.num_outputs) return;
  const int64_t row = blockIdx.y;
  const T* weights =
      static_cast<const T*>(params.weights) + static_cast<int64_t>(output) * shape.num_inputs;
  const T* inputs = static_cast<const T*>(params.rows) + row * shape.num_inputs;
  float sum = 0;
  for (int k = 0; k < shape.num_inputs; ++k) sum += to_float(weights[k]) * to_float(inputs[k]);
  float* out = params.sums + row * shape.ld + output;
  *out = params.accumulate ? *out + sum : sum;
}

void multiply(Stream& stream, const GemmParams& params) {
  const GemmShape& shape = params.shape;
  const LaunchConfig config = {
      .grid = {static_cast<unsigned>((shape.num_outputs + kThreads - 1) / kThreads),
               static_cast<unsigned>(shape.num_rows)},
      .block = {kThreads}};
  if (shape.dtype == DType::kBF16) {
    launch("plain_gemm", stream, multiply_kernel<Bf16>, config, params);
  } else {
    launch("plain_gemm", stream, multiply_kernel<Half>, config, params);
  }
}

}  // namespace

PlainGemmKernels plain_gemm_kernels() { return {.multiply = multiply}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
