// Mixture of experts: which experts a row goes to, the rows of each expert, their products, and
// the sum of what the experts make of a row. The number of rows an expert has stays on the device:
// grids are as large as the worst case wants, and blocks without rows leave at once.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

inline constexpr int kMaxExperts = 256;

// A choice is a row and a rank: [num_rows, top_k].
struct RouteParams {
  const float* logits;  // [num_rows, num_experts]
  int num_rows;
  int num_experts;  // at most kMaxExperts
  int top_k;
  bool renormalize;
  int32_t* experts;  // out [num_choices]
  float* weights;    // out [num_choices]
};

// Choices in order of expert, then row.
struct GroupParams {
  const int32_t* experts;  // [num_choices]
  int num_choices;
  int num_experts;
  int top_k;
  int32_t* cu_rows;  // out [num_experts + 1]: where an expert's choices begin
  int32_t* row_ids;  // out [num_choices]: the row of a choice, in that order
  int32_t* places;   // out [num_choices]: where a choice is in that order
};

// A product of every expert with its rows.
struct ExpertProductsParams {
  // Of all experts. rows.num_rows is the most an expert may have. With rows.row_ids (few rows
  // only), those of the choices in order of expert, records are found by them; else records are in
  // that order themselves. So is what comes out.
  ProductParams product;
  const int32_t* cu_rows;  // [num_experts + 1]
  bool rows_are_known;     // cu_rows is older than the work right before: LaunchConfig
  int num_experts;
  int most_with_rows;                // of the experts
  int64_t scales_offset;             // of scales of outputs in the weights; 0: none
  const void* weights[kMaxExperts];  // packed
};

struct CombineParams {
  const float* results;   // [num_choices, dim], in order of expert
  const int32_t* places;  // [num_choices]
  const float* weights;   // [num_choices]
  int num_rows;
  int top_k;
  int dim;
  float* out;  // [num_rows, dim]: += in order of rank
};

struct MoeKernels {
  void (*route)(Stream&, const RouteParams&);
  void (*group)(Stream&, const GroupParams&);
  void (*products)(Stream&, const ExpertProductsParams&);
  void (*combine)(Stream&, const CombineParams&);
};

namespace native {
MoeKernels moe_kernels();
}
namespace emulated {
MoeKernels moe_kernels();
}

}  // namespace specdec::cuda
