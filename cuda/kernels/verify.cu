// Walks along what was sampled, and where the KV of accepted nodes goes.
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

  // The lowest child of `parent` that carries the token; -1: none. All lanes of a warp call it.
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
      // No drafted token is below 0, and none equals such a sample.
      const int32_t sampled = params.sampled[first + node];
      child = sampled >= 0 ? tree.child(node, sampled) : -1;
    } else {
      const double coin = step_uniform(trees.seeds[request], trees.positions[first], depth + 1, 1);
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

// One block: pairs of all requests one after another.
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
    const int num_moved = params.places != nullptr ? max(0, num_accepted - 1) : num_accepted;
    const int32_t* nodes = accepted.nodes + static_cast<int64_t>(request) * accepted.max_depth;
    const auto place_of = [&](int node) {
      if (params.places == nullptr) return node;
      return params.places[static_cast<int64_t>(request) * params.max_places + node - 1];
    };
    // Places rise: from the first that is not where it belongs on, none is.
    int in_place = 0;
    while (in_place < num_moved && place_of(nodes[in_place]) == in_place + 1) ++in_place;
    __syncthreads();
    counts[mine] = num_moved - in_place;
    __syncthreads();
    int place = begin;
    for (int i = 0; i < kMovesThreads; ++i) {
      if (i < mine) place += counts[i];
      begin += counts[i];
    }
    for (int i = in_place; i < num_moved; ++i, ++place) {
      const int32_t* table =
          params.block_tables + static_cast<int64_t>(request) * params.max_blocks_per_request;
      const auto slot_of = [&](int past_base) {
        const int position = params.base_lens[request] + past_base;
        return static_cast<int64_t>(table[position / params.block_size]) * params.block_size +
               position % params.block_size;
      };
      params.slots[2 * place] = slot_of(place_of(nodes[i]));
      params.slots[2 * place + 1] = slot_of(i + 1);
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
