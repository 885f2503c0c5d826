// Runs products: decides how they are cut up, prepares their rows, owns their workspaces.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/product_chooser.h"
#include "cuda/backend/rank_exchange.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class Projector {
 public:
  // `deterministic`: no result depends on how many rows there are. `gemms` are looked at where it
  // is false.
  Projector(Device& device, Stream& stream, const ProjectionKernels& kernels,
            RankExchange& rank_exchange, DType act_dtype, bool deterministic, GemmList gemms);

  // `finish` as for row 0; its workspaces are filled in here.
  void run(const CudaPackedLinear& weight, const ProjectionInput& in, const FinishParams& finish);

  // Whether the likeliest tokens can be found without their outputs (Finish::kBest).
  bool finds_best(const CudaPackedLinear& weight, const ProjectionInput& in) const;

  ProductChooser& chooser() { return chooser_; }

 private:
  void run_rows(const CudaPackedLinear& weight, const RowsParams& rows, const FinishParams& finish);
  void run_all_heads(const CudaPackedLinear& weight, const RowsParams& rows, FinishParams finish);
  // Of few rows.
  RowSource row_source(const CudaPackedLinear& weight, const RowsParams& rows, Finish finish) const;
  ProductPlan plan_of(const CudaPackedLinear& weight, const RowsParams& rows, Finish finish) const;
  void plan_few_rows(int num_tiles, int num_rows, ProductPlan& plan) const;
  // Whether products can read the rows as they are.
  bool are_records(const RowsParams& rows) const;
  // By our own kernels, as the plan says.
  void launch(ProductParams params);
  void add_workspaces(ProductParams& params);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  RankExchange& rank_exchange_;
  DType act_dtype_;
  bool deterministic_;
  ProductChooser chooser_;
  Workspace records_;
  Workspace exchange_counts_;
  Workspace head_sums_;
  Workspace head_arrivals_;
  Workspace best_keys_;
  Workspace best_arrivals_;
  Workspace partials_;
  Workspace partial_arrivals_;
};

}  // namespace specdec::cuda
