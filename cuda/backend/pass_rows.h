// Rows of a pass of a device step, which the embedding of their tokens makes.
#pragma once

#include "cuda/backend/cuda_backend.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

struct PassRowMaker final : RowMaker {
  PassRowMaker(PassRows rows, const StepParams& step) : kind(rows), params(step) {}

  PassRows kind;
  StepParams params;
  bool is_done = false;
};

}  // namespace specdec::cuda
