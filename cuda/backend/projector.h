// Runs projections: chooses kernel and tiling, prepares rows, owns the workspaces.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/projection_chooser.h"
#include "cuda/backend/rank_exchange.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class Projector {
 public:
  // `deterministic`: no result depends on the number of rows. `gemms` are used only if it is false.
  Projector(Device& device, Stream& stream, const ProjectionKernels& kernels,
            RankExchange& rank_exchange, DType act_dtype, bool deterministic, GemmList gemms);

  // `finish` has the pointers of row 0; run() fills in its workspaces.
  void run(const CudaPackedLinear& weight, const ProjectionInput& in, const FinishParams& finish);

  // Whether the likeliest tokens can be found without storing outputs (Finish::kBest).
  bool finds_best(const CudaPackedLinear& weight, const ProjectionInput& in) const;

  ProjectionChooser& chooser() { return chooser_; }

 private:
  // The rows, prepared, with their inputs in the order of the weight's columns.
  RowsParams reordered(const CudaPackedLinear& weight, const RowsParams& rows);
  void run_rows(const CudaPackedLinear& weight, const RowsParams& rows, const FinishParams& finish);
  void run_all_heads(const CudaPackedLinear& weight, const RowsParams& rows, FinishParams finish);
  // For few rows: where the kernel gets its rows from.
  RowSource row_source(const CudaPackedLinear& weight, const RowsParams& rows, Finish finish) const;
  ProjectionTiling tiling_of(const CudaPackedLinear& weight, const RowsParams& rows,
                             Finish finish) const;
  void tile_few_rows(int num_tiles, int num_rows, ProjectionTiling& tiling) const;
  // Whether project_stream serves the projection, and is faster.
  bool streams(const CudaPackedLinear& weight, int num_rows, Finish finish) const;
  // Whether the rows are records already, which a kernel can read as they are.
  bool are_records(const RowsParams& rows, const ProjectionTiling& tiling) const;
  // Launches our own kernel with the tiling in `params`.
  void launch(ProjectionParams params);
  void add_workspaces(ProjectionParams& params);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  RankExchange& rank_exchange_;
  DType act_dtype_;
  bool deterministic_;
  ProjectionChooser chooser_;
  Workspace natural_rows_;
  Workspace ordered_rows_;
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
