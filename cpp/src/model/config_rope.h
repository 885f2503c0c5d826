// The rope settings of config.json, in the spelling of transformers 4 and of transformers 5.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// `default_theta` is the family's. Throws CheckpointError for settings the decoder does not
// implement.
RopeConfig parse_rope(const JsonFields& fields, int max_position_embeddings, double default_theta);

}  // namespace specdec
