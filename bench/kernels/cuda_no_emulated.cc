// In a build without the emulation.
#include "bench/kernels/cuda_probes.h"

namespace specdec::cuda::emulated {

ProbeKernels probe_kernels() { return {}; }

}  // namespace specdec::cuda::emulated
