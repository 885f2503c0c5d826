// States inside a model, as drafters may read them.
#pragma once

#include <cstdint>
#include <vector>

#include "specdec/config.h"

namespace specdec {

// What EngineConfig::model makes of a sequence of tokens, in passes of at most
// EngineConfig::max_num_batched_tokens rows: [tokens, taps, hidden size], rounded to the dtype
// computed in. The taps are the residual stream as each of the given layers reads it, the number of
// layers standing for the last one's output; then, with `final_hidden`, what the head reads. Throws
// InvalidArgument.
std::vector<float> tapped_states(const EngineConfig& config, const std::vector<int32_t>& tokens,
                                 const std::vector<int>& layer_inputs, bool final_hidden);

}  // namespace specdec
