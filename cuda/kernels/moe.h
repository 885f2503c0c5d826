// Mixture of experts: routing rows to experts, grouping rows by expert, the experts' projections,
// and the sum of a row's results. The number of rows per expert stays on the device: grids are as
// large as the worst case needs, and blocks without rows exit at once.
//
// Plain versions: reference::moe and routed (tests/testing/oracle/operations.cc);
// CudaMoe.MatchesReferenceAndAddsToTheResidualOrOverwrites and RoutersMatchReference
// (tests/cuda/backend/moe_test.cc) compare.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

inline constexpr int kMaxExperts = 256;

// A choice is one of a row's top_k experts, best first; arrays of choices are [num_rows, top_k].
struct RouteParams {
  const float* logits;  // [num_rows, num_experts]
  int num_rows;
  int num_experts;  // at most kMaxExperts
  Router router;
  int32_t* experts;  // out [num_choices]
  float* weights;    // out [num_choices]
};

// Sorts choices by expert, then row.
struct GroupParams {
  const int32_t* experts;  // [num_choices]
  int num_choices;
  int num_experts;
  int top_k;
  int32_t* cu_rows;       // out [num_experts + 1]: where an expert's choices begin
  int32_t* row_ids;       // out [num_choices]: rows of the sorted choices
  int32_t* choice_order;  // out [num_choices]: a choice's index when sorted
};

// The projections of all experts, each with its own rows.
struct ExpertProjectionsParams {
  // Common to all experts, but that finish.bias is [num_experts, out_features]. rows.num_rows is
  // the most rows an expert may have. With rows.row_ids (few rows only), which are
  // GroupParams::row_ids, a choice's record is found by its row; otherwise records are sorted like
  // the choices. Outputs are always sorted.
  ProjectionParams projection;
  const int32_t* cu_rows;  // [num_experts + 1]
  bool rows_are_known;     // cu_rows was written before the previous kernel
  int num_experts;
  int most_with_rows;                // most experts that may have rows
  int64_t scales_offset;             // of the outputs' scales in the weights; 0: none
  const void* weights[kMaxExperts];  // packed
};

struct CombineParams {
  const float* results;         // [num_choices, dim], sorted
  const int32_t* choice_order;  // [num_choices]
  const float* weights;         // [num_choices]
  int num_rows;
  int top_k;
  int dim;
  float* out;       // [num_rows, dim]: summed in order of choice
  bool accumulate;  // to what out holds, else to zero
};

struct MoeKernels {
  void (*route)(Stream&, const RouteParams&);
  void (*group)(Stream&, const GroupParams&);
  void (*project)(Stream&, const ExpertProjectionsParams&);
  void (*combine)(Stream&, const CombineParams&);
};

namespace native {
MoeKernels moe_kernels();
}
namespace emulated {
MoeKernels moe_kernels();
}

}  // namespace specdec::cuda
