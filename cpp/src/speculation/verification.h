// Decides which drafted tokens are kept. Pure: distributions and uniforms in, nodes and tokens out.
//
// Distributions may sum to 1 only up to rounding. A token outside a distribution has probability 0
// there, so drafts of a drafter with more padding in its vocabulary, or of token -1, are never
// accepted. A drafted token to which its own distribution gives no probability (an underflow)
// counts as deterministic, which is correct whatever it was drawn from.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "specdec/speculative_config.h"
#include "speculation/draft_tree.h"

namespace specdec {

// The outcome of verifying one request's tree. `nodes` are the accepted drafts, from the root's
// child down; `tokens` are what the request emits: the accepted tokens and one more.
struct Accepted {
  std::vector<int> nodes;
  std::vector<int32_t> tokens;
};

// Exact: `sampled[i]` is what the ordinary sampler draws at node i. Walks from the root to the
// child that carries the sampled token until there is none.
Accepted accept_exact(const DraftTree& tree, std::span<const int32_t> sampled);

// A uniform number in (0, 1) for use `index` at the depth-th token after the root; the same
// arguments give the same number. Index 0 draws the token that is emitted without a draft; index i
// + 1 is the coin of attempt i. No number is used for both.
//
// Each step needs new numbers, even at positions of earlier steps: a block that was cut short has
// looked at coins of later positions, and reusing those coins would bias the result.
using UniformSource = std::function<double(int depth, int index)>;

// The uniforms of a request's step: Philox keyed by its seed and the position of the tree's root,
// in a stream of its own.
UniformSource step_uniforms(uint64_t seed, int64_t root_position);

// The target's distribution [vocab_size] after node i, all processors applied.
using TargetSource = std::function<std::span<const float>(int node)>;

// Recursive rejection: at a node, attempt i with token x is accepted with probability min(1, p_i(x)
// / q_i(x)), else p_{i+1} = norm(max(p_i - q_i, 0)). When all attempts fail, the token is drawn
// from the last p. For a deterministic attempt, q_i is one at x; otherwise it is the distribution
// without the tokens drawn from it before. (SpecInfer, Miao et al. 2024; chains: Leviathan et al.
// 2023.)
Accepted accept_rejection(const DraftTree& tree, const TargetSource& target,
                          const UniformSource& uniform);

// Block verification of a chain (Sun et al. 2024); coin i belongs to the i-th token. Attempts
// without a distribution count as one-hot. All attempts at a node must be for the same token. Only
// the first is used, so the others must not be sampled.
Accepted accept_block(const DraftTree& tree, const TargetSource& target,
                      const UniformSource& uniform);

// Accepts the first child at depth i with probability rates[i - 1], then emits `sampled` at the
// last accepted node.
Accepted accept_synthetic(const DraftTree& tree, std::span<const double> rates,
                          std::span<const int32_t> sampled, const UniformSource& uniform);

}  // namespace specdec
