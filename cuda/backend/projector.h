// Runs products: decides how they are cut up, prepares their rows, owns their workspaces.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class Projector {
 public:
  // `deterministic`: no result depends on how many rows there are.
  Projector(Device& device, Stream& stream, const ProjectionKernels& kernels, DType act_dtype,
            bool deterministic);

  // `finish` as for row 0; its workspaces are filled in here.
  void run(const CudaPackedLinear& weight, const ProjectionInput& in, const FinishParams& finish);

 private:
  void run_rows(const CudaPackedLinear& weight, const RowsParams& rows, const FinishParams& finish);
  ProductPlan plan_of(const CudaPackedLinear& weight, const RowsParams& rows) const;
  // Rows of a block of wide_product; 0 where another kernel is to run.
  int wide_rows_of(const CudaPackedLinear& weight, int num_rows) const;
  void plan_few_rows(int num_tiles, int num_rows, ProductPlan& plan) const;
  // Whether products can read the rows as they are.
  bool are_records(const RowsParams& rows) const;
  void add_workspaces(ProductParams& params);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  DType act_dtype_;
  bool deterministic_;
  Workspace records_;
  Workspace head_sums_;
  Workspace head_arrivals_;
  Workspace partials_;
  Workspace partial_arrivals_;
};

}  // namespace specdec::cuda
