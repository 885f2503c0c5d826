// The launchers of one target, native (a GPU) or emulated. A backend chooses one when it is made.
// The header of each family names the plain version that its kernels are compared with.
#pragma once

#include "cuda/kernels/attention.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/peers.h"
#include "cuda/kernels/pointwise.h"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/recurrence.h"
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
  RecurrenceKernels recurrence;
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
