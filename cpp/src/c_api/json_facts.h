// Facts and statistics of an engine as JSON objects, with the names of specdec/fields.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "specdec/engine.h"

namespace specdec {

std::string json_of(const ModelInfo& info, const std::vector<int32_t>& eos_token_ids);
std::string json_of(const EngineStats& stats);

}  // namespace specdec
