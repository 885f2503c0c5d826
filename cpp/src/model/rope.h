// Rotary position embedding tables.
#pragma once

#include <vector>

#include "model/config.h"

namespace specdec {

// Number of leading elements of a head that rotate.
int rotary_dim(const RopeConfig& rope, int head_dim);

// Elements of the heads that the rope at `index` of ModelConfig::ropes turns; 0: no layer has it.
int rope_head_dim(const ModelConfig& config, int index);

// Radians by which one position turns each of the rotary_dim / 2 planes. `length` is the
// sequence's: kDynamic stretches its base with it, and kLongRope chooses its factors by it; other
// kinds ignore it.
std::vector<double> rope_frequencies(const RopeConfig& rope, int rotary_dim, int length);

// Factor of cos and sin for yarn and longrope; 1 for other kinds.
double rope_attention_factor(const RopeConfig& rope);

struct RopeTables {
  std::vector<float> cos;  // [num_positions, rotary_dim / 2]
  std::vector<float> sin;
};

// Position p of kDynamic uses the frequencies of a sequence of max(p + 1, original maximum) tokens.
// transformers computes the same when it decodes token by token. Unlike there, a prompt longer than
// the original maximum gives the same result whole, in chunks or token by token.
//
// kLongRope always uses the factors for sequences of num_positions tokens, so that a prefix has the
// same keys in sequences of every length. Sequences within the original maximum match transformers
// where num_positions is within it, too.
RopeTables make_rope_tables(const RopeConfig& rope, int head_dim, int num_positions);

// Factors of the queries at each position; empty where all are 1.
std::vector<float> make_query_scales(const RopeConfig& rope, int num_positions);

}  // namespace specdec
