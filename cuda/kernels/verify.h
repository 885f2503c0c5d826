// Which drafted tokens are kept: speculation/verification.h on the device, with the same coins.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kMaxNodeAttempts = 64;  // tries at one node

// The trees of a packed batch: request r's nodes are rows cu_rows[r] to cu_rows[r + 1], its root
// first, parents before children. A request without rows emits nothing.
struct VerifyTrees {
  const int32_t* cu_rows;    // [num_requests + 1]
  const int32_t* token_ids;  // [num_rows]
  const int32_t* parents;    // [num_rows] node within the request; null: chains
  const int32_t* positions;  // [num_rows]
  const uint64_t* seeds;     // [num_requests]
  int num_requests;
};

// DraftTree::Attempt: a try at the token after `parent`, which fell on `child`.
struct VerifyAttempt {
  int32_t parent;
  int32_t child;
  int32_t distribution;  // row of WeighParams::drafts; -1: deterministic
};

struct AcceptedDrafts {
  int32_t* num_accepted;  // [num_requests]
  int32_t* nodes;         // [num_requests, max_depth] accepted, from the root's child down
  int32_t* num_tokens;    // [num_requests] emitted: one more, or 0 without rows
  int32_t* tokens;        // [num_requests, max_depth + 1]
  int max_depth;          // of any tree
};

// accept_exact, or accept_synthetic with rates. A synthetic walk takes the lowest child.
struct WalkParams {
  VerifyTrees trees;
  const int32_t* sampled;  // [num_rows] what the sampler draws after each node
  const double* rates;     // [num_rates], or null
  int num_rates;
  AcceptedDrafts accepted;
};

// accept_rejection, or accept_block (chains) with `is_block`.
struct WeighParams {
  VerifyTrees trees;
  const VerifyAttempt* attempts;  // a request's one after another, in the order they were made
  const int32_t* cu_attempts;     // [num_requests + 1]
  const float* target;            // [num_rows, vocab_size] distributions after each node
  const float* drafts;            // [*, draft_vocab_size] distributions of attempts
  int vocab_size;                 // at most kMaxWeighedVocab
  int draft_vocab_size;
  int num_rows;
  bool is_block;
  double* residuals;  // [num_rows] workspace of block verification
  AcceptedDrafts accepted;
};
inline constexpr int kWeighSegment = 1024;  // tokens
inline constexpr int kMaxWeighedVocab = 512 * kWeighSegment;

// Where the KV of accepted nodes has to move, for AttentionKernels::copy_kv. A tree's row i has its
// KV at slot base_len + i; or, of a model that did not run all of the nodes, where `places` says.
struct KvMovesParams {
  const int32_t* cu_rows;  // [num_requests + 1]
  AcceptedDrafts accepted;
  const int32_t* base_lens;  // [num_requests]
  // Or null: [num_requests, max_places] of nodes 1 and up, past base_len. The last node accepted
  // need not have one, and stays where it is.
  const int32_t* places = nullptr;
  int max_places = 0;
  const int32_t* block_tables;  // [num_requests, max_blocks_per_request]
  int max_blocks_per_request;
  int block_size;
  int num_requests;
  int64_t* slots;      // out [up to num_requests * max_depth, 2] from, to
  int32_t* num_pairs;  // out [1]
};

struct VerifyKernels {
  void (*walk)(Stream&, const WalkParams&);
  void (*weigh)(Stream&, const WeighParams&);
  void (*kv_moves)(Stream&, const KvMovesParams&);
};

namespace native {
VerifyKernels verify_kernels();
}
namespace emulated {
VerifyKernels verify_kernels();
}

}  // namespace specdec::cuda
