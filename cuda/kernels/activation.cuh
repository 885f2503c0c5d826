// Activations of an MLP. Plain versions: reference::activate and gated
// (tests/testing/oracle/operations.cc), which ProjectionTest.ActivationsAreAppliedToSumsAndGates
// (tests/cuda/backend/projection_test.cc) compares.
#pragma once

#include "backend/op_args.h"
#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Of those without constants.
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
    case Activation::kReluSquared: {
      const float positive = fmaxf(x, 0.0f);
      return positive * positive;
    }
    case Activation::kIdentity:
    case Activation::kXielu:
    case Activation::kClampedSwiglu:
      break;
  }
  return x;
}

// e^x - 1 - x for x <= 0, as in cpu/kernels/math.h.
__device__ __forceinline__ float exp_minus_line(float x) {
  if (x < -1.0f) return expf(x) - 1.0f - x;
  float p = 0x1.1f5370p-13f;
  p = fmaf(p, x, 0x1.5b046ep-10f);
  p = fmaf(p, x, 0x1.0ffb70p-7f);
  p = fmaf(p, x, 0x1.554514p-5f);
  p = fmaf(p, x, 0x1.5554fap-3f);
  p = fmaf(p, x, 0x1.000000p-1f);
  return x * x * p;
}

__device__ __forceinline__ float xielu(const ActivationConstants& constants, float x) {
  float curve;
  if (x > 0.0f) {
    curve = constants.positive * x * x;
  } else {
    const float least = fminf(x, constants.eps);
    curve = constants.negative * (exp_minus_line(least) + (least - x));
  }
  return fmaf(constants.beta, x, curve);
}

// All but kClampedSwiglu.
__device__ __forceinline__ float activate(Activation activation,
                                          const ActivationConstants& constants, float x) {
  if (activation == Activation::kXielu) return xielu(constants, x);
  return activate(activation, x);
}

// The result of a gate and what it multiplies.
__device__ __forceinline__ float gated(Activation activation, const ActivationConstants& constants,
                                       float gate, float up) {
  if (activation == Activation::kClampedSwiglu) {
    const float g = fminf(gate, constants.limit);
    const float u = fmaxf(fminf(up, constants.limit), -constants.limit);
    return g / (1.0f + expf(-constants.alpha * g)) * (1.0f + u);
  }
  return activate(activation, constants, gate) * up;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
