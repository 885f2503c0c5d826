// The walk from the root along sampled tokens, and the moves of accepted nodes' KV.
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/verify.h"
#include "cuda/kernels/verify_passes.cuh"
#include "cuda/kernels/verify_walk.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMovesThreads = 256;

__global__ void __launch_bounds__(kThreads, 1) walk_kernel(WalkParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int request = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (request < params.trees.num_requests) walk_tree(params, request);
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
