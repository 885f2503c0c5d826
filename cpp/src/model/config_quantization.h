// Reads how config.json says that weights are stored in fewer bits.
#pragma once

#include <string>

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// Sets stored_format and scheme from quantization_config, or from the settings file that older
// tools write to `directory`, if there is either. The tensors of each matrix decide whether it is
// stored so. Throws CheckpointError for formats that are not read and for keys that are not known.
void parse_quantization_config(const JsonFields& fields, const std::string& directory,
                               ModelConfig& config);

}  // namespace specdec
