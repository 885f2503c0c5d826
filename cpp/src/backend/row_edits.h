// The processors of a row that come first, applied on the host.
#pragma once

#include <span>

#include "backend/op_args.h"

namespace specdec {

// Keeps only allowed tokens that are not banned. `scratch` has room for the allowed ones.
void apply_masks(const SampleRow& params, std::span<float> logits, std::span<float> scratch);
void apply_bias(const SampleRow& params, std::span<float> logits);

}  // namespace specdec
