// Runs a drafter's model on one text, for tests that compare it with another implementation.
#pragma once

#include <cstdint>
#include <vector>

#include "specdec/config.h"

namespace specdec::testing {

// Logits of the head of the only drafter: [rows, tokens that the head scores] float32. The first
// tokens.size() - 1 rows continue tokens[1], tokens[2] and so on up to the last, each given what
// EngineConfig::model made of the tokens before; the others continue `drafts`, a chain below the
// last token, each given the head's own state.
std::vector<float> head_logits(const EngineConfig& config, const std::vector<int32_t>& tokens,
                               const std::vector<int32_t>& drafts);

// Drafts below the root, which is the last token: parents come before children, and node 0 is the
// root, so that draft i is node i + 1.
struct DraftedTree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;
  std::vector<float> survivals;  // the model's own probability of each path
};

// The tree that the only drafter's model drafts after `tokens`, greedily, as deep and wide as the
// configuration allows.
DraftedTree drafted_tree(const EngineConfig& config, const std::vector<int32_t>& tokens);

}  // namespace specdec::testing
