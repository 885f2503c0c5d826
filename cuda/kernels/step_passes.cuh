// The kernels that make the rows of a pass.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

void make_rows(Stream& stream, PassRows kind, const StepParams& params);
void embed_rows_act(Stream& stream, PassRows kind, const StepParams& params,
                    const EmbedRowsParams& embedding, DType act_dtype);
void embed_rows_codes(Stream& stream, PassRows kind, const StepParams& params,
                      const EmbedRowsParams& embedding, const CodeLayout& layout);

}  // namespace specdec::cuda::SPECDEC_TARGET
