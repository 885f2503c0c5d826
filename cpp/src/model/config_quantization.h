// Reads how config.json says that weights are stored in fewer bits.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// Sets stored_format and scale_block from quantization_config, if there is one. Each matrix's own
// dtype decides whether it is stored so. Throws CheckpointError for formats that are not supported.
void parse_quantization_config(const JsonFields& fields, ModelConfig& config);

}  // namespace specdec
