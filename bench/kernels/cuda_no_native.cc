// In a build without CUDA.
#include "bench/kernels/cuda_conditional.h"
#include "bench/kernels/cuda_probes.h"

namespace specdec::cuda::native {

ProbeKernels probe_kernels() { return {}; }

}  // namespace specdec::cuda::native

namespace specdec::bench {

WhileCost measure_while(int num_kernels, bool overlaps_previous, int) {
  return {
      .num_kernels = num_kernels, .overlaps_previous = overlaps_previous, .refused = "needs a GPU"};
}

}  // namespace specdec::bench
