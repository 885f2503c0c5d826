// The launchers of one target: native (a GPU) or emulated. Chosen once, when a backend is made.
#pragma once

#include "cuda/kernels/attention.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/peers.h"
#include "cuda/kernels/pointwise.h"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/sampling.h"
#include "cuda/kernels/step.h"
#include "cuda/kernels/verify.h"

namespace specdec::cuda {

struct KernelTable {
  AttentionKernels attention;
  MoeKernels moe;
  PeerKernels peers;
  PointwiseKernels pointwise;
  ProjectionKernels projection;
  QuantizeKernels quantize;
  SamplingKernels sampling;
  StepKernels step;
  VerifyKernels verify;
};

namespace native {
KernelTable kernel_table();
}
namespace emulated {
KernelTable kernel_table();
}

}  // namespace specdec::cuda
