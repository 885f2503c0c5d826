// What config.json says of weights that are stored in fewer bits.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// Sets stored_format and scale_block from quantization_config, if there is one. Which matrices are
// stored so is left to their own dtype. Throws CheckpointError for what is not read.
void parse_quantization_config(const JsonFields& fields, ModelConfig& config);

}  // namespace specdec
