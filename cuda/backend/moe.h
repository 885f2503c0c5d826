// Runs mixtures of experts, and owns the workspaces between their passes. The number of rows per
// expert stays on the device, so a step with experts can be captured like any other.
#pragma once

#include <cstdint>
#include <span>

#include "backend/op_args.h"
#include "cuda/backend/rank_exchange.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class ExpertMixer {
 public:
  ExpertMixer(Device& device, Stream& stream, const MoeKernels& kernels,
              const ProjectionKernels& projection_kernels, RankExchange& rank_exchange,
              DType act_dtype);

  void run(const MoeArgs& args);

 private:
  // The rows that a projection by all experts reads: rows of x by row_ids, or one row per choice in
  // order of experts.
  struct Rows {
    const void* x = nullptr;  // [num_x, in_features] act
    int num_x = 0;
    const int32_t* row_ids = nullptr;  // [num_choices] in order of experts, or null
    const int32_t* cu_rows = nullptr;  // [num_experts + 1]
    int most_of_expert = 0;            // most rows that one expert may have
    int num_choices = 0;
    bool are_known = false;  // ExpertProjectionsParams::rows_are_known
  };

  void run_rows(const MoeArgs& args, int first_row, int num_rows);
  void project(std::span<const PackedLinear* const> experts, const Rows& rows,
               const FinishParams& finish);
  // For experts that ranks share: exchanges and folds this rank's planes into results [num_choices,
  // hidden].
  void add_up(const MoeArgs& args, const int32_t* cu_rows, int num_choices, float* results);
  // Records of x's rows, or of each choice's row.
  const void* prepared(const Rows& rows, int dim, bool is_gathered, int num_k_blocks);

  const DeviceProperties& properties_;
  Stream& stream_;
  const MoeKernels& kernels_;
  const ProjectionKernels& projection_kernels_;
  RankExchange& rank_exchange_;
  DType act_dtype_;
  Workspace choices_;
  Workspace records_;
  Workspace act_;
  Workspace results_;
};

}  // namespace specdec::cuda
