// Calls a drafter for one request.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "speculation/draft_tree.h"
#include "speculation/drafter.h"
#include "speculation/drafters.h"

namespace specdec::testing {

inline std::vector<int32_t> random_tokens(std::mt19937& random, int size, int vocab_size) {
  std::vector<int32_t> tokens(size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

struct DraftLimits {
  int max_depth = 4;
  int max_nodes = 64;
  int tree_width = 1;
};

inline DraftRequest request_for(std::span<const int32_t> tokens, DraftTree& tree,
                                const DraftLimits& limits = {}, uint64_t sequence = 0) {
  tree.reset(tokens.back());
  DraftRequest request;
  request.sequence = sequence;
  request.tokens = tokens;
  request.max_depth = limits.max_depth;
  request.max_nodes = limits.max_nodes;
  request.draft_budget = limits.max_nodes;
  request.tree_width = limits.tree_width;
  request.tree = &tree;
  return request;
}

// Drafts with fixed lengths, without a plan.
inline void draft_unplanned(Drafters& drafters, std::span<DraftRequest> requests) {
  DraftPlan none;
  drafters.draft(none, requests);
}

// `drafter` may be one or several.
template <class AnyDrafter>
DraftTree draft_once(AnyDrafter& drafter, std::span<const int32_t> tokens,
                     const DraftLimits& limits = {}, uint64_t sequence = 0) {
  DraftTree tree;
  DraftRequest request = request_for(tokens, tree, limits, sequence);
  if constexpr (std::is_same_v<AnyDrafter, Drafters>) {
    draft_unplanned(drafter, {&request, 1});
  } else {
    drafter.draft({&request, 1});
  }
  tree.check_integrity();
  return tree;
}

// The drafted tokens of a chain.
inline std::vector<int32_t> drafts_of(const DraftTree& tree) {
  return {tree.tokens().begin() + 1, tree.tokens().end()};
}

}  // namespace specdec::testing
