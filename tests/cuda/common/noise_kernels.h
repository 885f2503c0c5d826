// Launchers of noise_kernels.cu.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct NoiseKernels {
  // noise[i] = the Gumbel noise of words[i]
  void (*gumbel)(Stream& stream, const uint32_t* words, float* noise, int count);
  // coins[i] = the uniform of (seed, position, depth i, index 2 i)
  void (*coins)(Stream& stream, uint64_t seed, int64_t position, double* coins, int count);
};

namespace native {
NoiseKernels noise_kernels();
}
namespace emulated {
NoiseKernels noise_kernels();
}

}  // namespace specdec::cuda
