// The attention launchers by activation dtype, each in a source file of its own; included after
// target.cuh.
#pragma once

#include "cuda/kernels/attention.h"

namespace specdec::cuda::SPECDEC_TARGET {

void attend_bf16(Stream& stream, const AttentionParams& params);
void attend_f16(Stream& stream, const AttentionParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
