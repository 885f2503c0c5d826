// The walk from a tree's root along sampled tokens.
#pragma once

#include "cuda/common/philox.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/verify.h"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int32_t kAnyDraft = -1;

// The tree of one request.
struct TreeRows {
  const int32_t* token_ids;  // [num_nodes]
  const int32_t* parents;    // [num_nodes], or null
  int num_nodes;

  // The first child of `parent` that carries the token; -1: none. All lanes of a warp call it.
  __device__ __forceinline__ int child(int parent, int32_t token) const {
    for (int base = parent + 1; base < num_nodes; base += 32) {
      const int node = base + static_cast<int>(threadIdx.x) % 32;
      bool found = false;
      if (node < num_nodes) {
        const int its_parent = parents != nullptr ? parents[node] : node - 1;
        found = its_parent == parent && (token == kAnyDraft || token_ids[node] == token);
      }
      const uint32_t votes = __ballot_sync(0xffffffffu, found);
      if (votes != 0) return base + __ffs(static_cast<int>(votes)) - 1;
    }
    return -1;
  }
};

// A warp accepts drafts of one request, as WalkParams says. Its first lane writes.
__device__ __forceinline__ void walk_tree(const WalkParams& params, int request) {
  const VerifyTrees& trees = params.trees;
  const AcceptedDrafts& out = params.accepted;
  const bool writes = threadIdx.x % 32 == 0;
  const int first = trees.cu_rows[request];
  const TreeRows tree = {.token_ids = trees.token_ids + first,
                         .parents = trees.parents != nullptr ? trees.parents + first : nullptr,
                         .num_nodes = trees.cu_rows[request + 1] - first};
  if (tree.num_nodes == 0) {
    if (writes) out.num_accepted[request] = out.num_tokens[request] = 0;
    return;
  }
  int32_t* nodes = out.nodes + static_cast<int64_t>(request) * out.max_depth;
  int32_t* tokens = out.tokens + static_cast<int64_t>(request) * (out.max_depth + 1);
  const int limit = params.rates != nullptr ? min(params.num_rates, out.max_depth) : out.max_depth;
  int node = 0;
  int depth = 0;
  for (; depth < limit; ++depth) {
    int child;
    if (params.rates == nullptr) {
      // A sample below 0 is no token, and no draft carries it.
      const int32_t sampled = params.sampled[first + node];
      child = sampled >= 0 ? tree.child(node, sampled) : -1;
    } else {
      const double coin =
          step_uniform(trees.seeds[request], trees.positions[first], depth + 1, coin_of(0));
      child = coin < params.rates[depth] ? tree.child(node, kAnyDraft) : -1;
    }
    if (child < 0) break;
    if (writes) {
      nodes[depth] = child;
      tokens[depth] = tree.token_ids[child];
    }
    node = child;
  }
  if (!writes) return;
  tokens[depth] = params.sampled[first + node];
  out.num_accepted[request] = depth;
  out.num_tokens[request] = depth + 1;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
