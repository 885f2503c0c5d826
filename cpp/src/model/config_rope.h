// The rope settings of config.json, in the spelling of transformers 4 and of transformers 5.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// The defaults are the family's. Throws CheckpointError for settings that the decoder does not
// implement.
RopeConfig parse_rope(const JsonFields& fields, int max_position_embeddings, double default_theta,
                      double default_partial_rotary_factor = 1.0);

// Whether rope_parameters holds settings per kind of layer, as transformers 5 writes them where
// layers differ. The second function gives one kind's settings ("full_attention"), or the default
// rope where the file has none.
bool has_layer_ropes(const JsonFields& fields);
RopeConfig parse_layer_rope(const JsonFields& fields, const char* kind, int max_position_embeddings,
                            double default_theta);

}  // namespace specdec
