// The rope settings of config.json, in the spelling of transformers 4 and of transformers 5.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// The defaults are the family's. Throws CheckpointError for settings the decoder does not
// implement.
RopeConfig parse_rope(const JsonFields& fields, int max_position_embeddings, double default_theta,
                      double default_partial_rotary_factor = 1.0);

// Whether rope_parameters holds settings by the kind of layer, as transformers 5 has them where
// layers differ; and those of one kind ("full_attention"), the default rope where it has none.
bool has_layer_ropes(const JsonFields& fields);
RopeConfig parse_layer_rope(const JsonFields& fields, const char* kind, int max_position_embeddings,
                            double default_theta);

}  // namespace specdec
