// Verification of drafted tokens: the rules of speculation/verification.h on the device, with the
// same coins.
//
// Plain version: accept_exact, accept_synthetic, accept_rejection and accept_block
// (cpp/src/speculation/verification.cc). Verify (tests/cuda/backend/verify_test.cc) compares token
// for token, and the moves of KV with those listed on the host;
// EmittedOnDevice.TokensFollowTheTarget tests the distribution of emitted tokens.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kMaxNodeAttempts = 64;  // at one node

// The trees of a packed batch. The nodes of request r are rows cu_rows[r] to cu_rows[r + 1], the
// root first and every parent before its children. A request without rows emits nothing.
struct VerifyTrees {
  const int32_t* cu_rows;    // [num_requests + 1]
  const int32_t* token_ids;  // [num_rows]
  const int32_t* parents;    // [num_rows] nodes of the request; null: all are chains
  const int32_t* positions;  // [num_rows]
  const uint64_t* seeds;     // [num_requests]
  int num_requests;
};

// DraftTree::Attempt: a drafter tried the token of `child` as the one after `parent`.
struct VerifyAttempt {
  int32_t parent;
  int32_t child;
  int32_t distribution;  // row of WeighParams::drafts; -1: deterministic
};

struct AcceptedDrafts {
  int32_t* num_accepted;  // [num_requests]
  int32_t* nodes;         // [num_requests, max_depth] accepted, from the root's child down
  int32_t* num_tokens;    // [num_requests] emitted: num_accepted + 1, or 0 without rows
  int32_t* tokens;        // [num_requests, max_depth + 1]
  int max_depth;          // of any tree
};

// accept_exact or, if there are rates, accept_synthetic: then the walk takes a node's first child.
struct WalkParams {
  VerifyTrees trees;
  const int32_t* sampled;  // [num_rows] the token that the sampler drew after each node
  const double* rates;     // [num_rates], or null
  int num_rates;
  AcceptedDrafts accepted;
};

// accept_rejection, or accept_block (chains) with `is_block`.
struct WeighParams {
  VerifyTrees trees;
  const VerifyAttempt* attempts;  // request by request, in the order they were made
  const int32_t* cu_attempts;     // [num_requests + 1]
  const float* target;  // [num_rows, vocab_size] the target's distribution after each node
  const float* drafts;  // [*, draft_vocab_size] the distributions attempts were drawn from
  int vocab_size;       // at most kMaxWeighedVocab
  int draft_vocab_size;
  int num_rows;
  bool is_block;
  double* residuals;  // [num_rows] workspace of block verification
  AcceptedDrafts accepted;
};
inline constexpr int kWeighSegment = 1024;  // tokens
inline constexpr int kMaxWeighedVocab = 512 * kWeighSegment;

// The moves of accepted nodes' KV, for AttentionKernels::copy_kv. The i-th accepted node's KV moves
// to position base_len + i + 1 from an offset from base_len: the node's number, if the model ran
// the whole tree.
struct KvMovesParams {
  const int32_t* cu_rows;  // [num_requests + 1]
  AcceptedDrafts accepted;
  const int32_t* base_lens;  // [num_requests]
  // [num_requests, max_offsets] offsets of nodes 1 and up, for a draft model, which ran only part
  // of the tree. It may not have run the last accepted node, so that node is not moved. Null: all
  // nodes ran.
  const int32_t* kv_offsets = nullptr;
  int max_offsets = 0;
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
