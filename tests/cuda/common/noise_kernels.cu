#include "cuda/common/philox.cuh"
#include "cuda/common/target.cuh"
#include "tests/cuda/common/noise_kernels.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;

__global__ void gumbel_kernel(const uint32_t* words, float* noise, int count) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count) noise[i] = gumbel_noise(words[i]);
}

__global__ void coins_kernel(uint64_t seed, int64_t position, double* coins, int count) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count) coins[i] = step_uniform(seed, position, i, 2 * i);
}

LaunchConfig config_for(int count) {
  return {.grid = {static_cast<unsigned>((count + kThreads - 1) / kThreads)}, .block = {kThreads}};
}

void gumbel(Stream& stream, const uint32_t* words, float* noise, int count) {
  launch("gumbel", stream, gumbel_kernel, config_for(count), words, noise, count);
}

void coins(Stream& stream, uint64_t seed, int64_t position, double* coins, int count) {
  launch("coins", stream, coins_kernel, config_for(count), seed, position, coins, count);
}

}  // namespace

NoiseKernels noise_kernels() { return {.gumbel = gumbel, .coins = coins}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
