// The walk from the root along sampled tokens, and the moves of accepted nodes' KV.
#include "cuda/common/philox.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/verify.h"
#include "cuda/kernels/verify_passes.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMovesThreads = 256;
constexpr int32_t kAnyToken = -1;

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
        found = its_parent == parent && (token == kAnyToken || token_ids[node] == token);
      }
      const uint32_t votes = __ballot_sync(0xffffffffu, found);
      if (votes != 0) return base + __ffs(static_cast<int>(votes)) - 1;
    }
    return -1;
  }
};

__global__ void __launch_bounds__(kThreads, 1) walk_kernel(WalkParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const VerifyTrees& trees = params.trees;
  const AcceptedDrafts& out = params.accepted;
  const int request = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (request >= trees.num_requests) return;
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
      child = coin < params.rates[depth] ? tree.child(node, kAnyToken) : -1;
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

// One block writes the moves of all requests, one request after another.
__global__ void __launch_bounds__(kMovesThreads) moves_kernel(KvMovesParams params) {
  __shared__ int counts[kMovesThreads];
  ptx::wait_for_previous();
  const AcceptedDrafts& accepted = params.accepted;
  const int mine = threadIdx.x;
  int begin = 0;
  for (int base = 0; base < params.num_requests; base += kMovesThreads) {
    const int request = base + mine;
    const bool has_rows =
        request < params.num_requests && params.cu_rows[request + 1] > params.cu_rows[request];
    const int num_accepted = has_rows ? accepted.num_accepted[request] : 0;
    const int num_moved = params.kv_offsets != nullptr ? max(0, num_accepted - 1) : num_accepted;
    const int32_t* nodes = accepted.nodes + static_cast<int64_t>(request) * accepted.max_depth;
    const auto offset_of = [&](int node) {
      if (params.kv_offsets == nullptr) return node;
      return params.kv_offsets[static_cast<int64_t>(request) * params.max_offsets + node - 1];
    };
    // Offsets increase strictly along a path: once one node must move, all later ones must.
    int num_in_place = 0;
    while (num_in_place < num_moved && offset_of(nodes[num_in_place]) == num_in_place + 1) {
      ++num_in_place;
    }
    __syncthreads();
    counts[mine] = num_moved - num_in_place;
    __syncthreads();
    int pair = begin;
    for (int i = 0; i < kMovesThreads; ++i) {
      if (i < mine) pair += counts[i];
      begin += counts[i];
    }
    for (int i = num_in_place; i < num_moved; ++i, ++pair) {
      const int32_t* table =
          params.block_tables + static_cast<int64_t>(request) * params.max_blocks_per_request;
      const auto slot_at = [&](int offset) {
        const int position = params.base_lens[request] + offset;
        return static_cast<int64_t>(table[position / params.block_size]) * params.block_size +
               position % params.block_size;
      };
      params.slots[2 * pair] = slot_at(offset_of(nodes[i]));
      params.slots[2 * pair + 1] = slot_at(i + 1);
    }
  }
  if (mine == 0) *params.num_pairs = begin;
  ptx::let_next_start();
}

void walk(Stream& stream, const WalkParams& params) {
  const int num_requests = params.trees.num_requests;
  if (num_requests == 0) return;
  launch("verify_walk", stream, walk_kernel,
         {.grid = {static_cast<unsigned>((num_requests + kWarps - 1) / kWarps)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void kv_moves(Stream& stream, const KvMovesParams& params) {
  launch("verify_kv_moves", stream, moves_kernel,
         {.grid = {1}, .block = {kMovesThreads}, .overlaps_previous = true}, params);
}

}  // namespace

VerifyKernels verify_kernels() {
  return {.walk = walk, .weigh = weigh_drafts, .kv_moves = kv_moves};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
