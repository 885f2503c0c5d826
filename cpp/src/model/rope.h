// Rotary position embedding tables.
#pragma once

#include <vector>

#include "model/config.h"

namespace specdec {

// Number of leading elements of a head that rotate.
int rotary_dim(const RopeConfig& rope, int head_dim);

// Radians a position turns each of the rotary_dim / 2 planes by. `length`, of the sequence, matters
// to kDynamic, which stretches its base with it, and to kLongRope, which chooses its factors by it.
std::vector<double> rope_frequencies(const RopeConfig& rope, int rotary_dim, int length);

// What yarn and longrope multiply cos and sin with; 1 for the other kinds.
double rope_attention_factor(const RopeConfig& rope);

struct RopeTables {
  std::vector<float> cos;  // [num_positions, rotary_dim / 2]
  std::vector<float> sin;
};

// Position p of kDynamic uses the frequencies of a sequence of max(p + 1, original maximum) tokens.
// That is what transformers computes when it decodes token by token, and unlike there a prompt
// longer than the original maximum gives the same result whole, in chunks or token by token.
//
// kLongRope takes its factors for sequences of num_positions tokens, whatever their length is, so
// that a prefix has the same keys in all of them. Sequences within the original maximum get what
// transformers computes where num_positions is within it, too.
RopeTables make_rope_tables(const RopeConfig& rope, int head_dim, int num_positions);

}  // namespace specdec
