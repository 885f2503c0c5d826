// Activations of an MLP. Plain version: reference::activate (tests/testing/oracle/operations.cc);
// ProjectionTest.ActivationsAreAppliedToSumsAndGates (tests/cuda/backend/projection_test.cc)
// compares.
#pragma once

#include "backend/op_args.h"
#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

__device__ __forceinline__ float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kRelu:
      return fmaxf(x, 0.0f);
    case Activation::kGelu:
      return x * (0.5f * erfcf(x * -0.70710678f));
    case Activation::kGeluTanh: {
      const float cubic = fmaf(x * x, 0.044715f, 1.0f);
      return x / (1.0f + expf(-1.5957691216f * (x * cubic)));
    }
    case Activation::kIdentity:
      break;
  }
  return x;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
