// Options of the C API: JSON objects with the names of the option tables.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "specdec/config.h"
#include "specdec/request_options.h"
#include "specdec/sampling_params.h"

namespace specdec {

// All of them throw InvalidArgument that names the option; `json` may be empty: no options.

// Ranges, and which options go together, are for EngineConfig::validate().
EngineConfig engine_config_of(std::string_view json);

struct RequestArguments {
  SamplingParams params;
  RequestOptions options;
};

// `eos_token_ids`: the checkpoint's, which end a text where the object has no others.
RequestArguments request_arguments_of(std::string_view json,
                                      const std::vector<int32_t>& eos_token_ids);

}  // namespace specdec
