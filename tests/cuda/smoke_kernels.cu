// Kernels of emulation_test.cc.
#include "cuda/device/numeric.cuh"
#include "cuda/device/target.cuh"
#include "tests/cuda/smoke_kernels.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// Each block sums its elements: in warps by shuffles, then through shared memory.
__global__ void __launch_bounds__(256) sum_kernel(const float* values, float* sums, int count) {
  SPECDEC_SHARED_BYTES(shared);
  float* partial = reinterpret_cast<float*>(shared);  // [warps]
  const int begin = static_cast<int>(blockIdx.x) * count;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    sum += values[begin + i];
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += partial[warp];
  sums[blockIdx.x] = sum;
}

void sum(Stream& stream, const float* values, float* sums, int num_blocks, int count) {
  launch("sum", stream, sum_kernel,
         {.grid = {static_cast<unsigned>(num_blocks)}, .block = {256}, .shared_bytes = 32}, values,
         sums, count);
}

}  // namespace

SmokeKernels smoke_kernels() { return {.sum = sum}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
