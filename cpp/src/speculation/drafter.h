// The interface of everything that proposes tokens. The engine calls draft() once per step with the
// requests that may draft, and finish() when a sequence ends. A drafter reads the tokens of a
// sequence and its paged state: the rows that models keep per token in the sequence's blocks (KV,
// or hidden states tapped from the target). The content of a block depends only on the tokens up to
// its end, so preemption, resumption, sharing through the prefix cache and steps without drafts
// need no calls.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

#include "core/thread_pool.h"
#include "speculation/draft_policy.h"
#include "speculation/draft_tree.h"

namespace specdec {

// Used by drafters that run a model; the others pass them on.
class BlockTable;
class GrammarPath;
struct SampleRow;

// Builds the sampling parameters of one request's row: the row of the token after `path`, the
// drafted tokens that follow the committed ones. The row's spans stay valid until the next step.
class SampleRowSource {
 public:
  virtual ~SampleRowSource() = default;
  virtual SampleRow make_row(std::span<const int32_t> path) = 0;
};

struct DraftRequest {
  uint64_t sequence = 0;            // ordinal
  std::span<const int32_t> tokens;  // prompt and output; the last is the tree's root
  int max_depth = 0;                // longest path that the request can use, at least 1
  int max_nodes = 0;                // most nodes the tree may hold, at least 1
  int draft_budget = 0;       // KV slots after the root's: nodes that a model can run or verify
  int tree_width = 1;         // continuations considered at a node; 1: a chain
  int num_remaining = 0;      // most tokens the request may still get
  int num_prompt_tokens = 0;  // of `tokens`
  std::span<const int32_t> prediction = {};  // SamplingParams::prediction
  std::string_view cache_salt = {};          // RequestOptions::cache_salt
  // Paged state of every model: token i is in slot blocks->slot(i), and the target has filled the
  // slots of all tokens but the root. There is room for draft_budget tokens after the root.
  const BlockTable* blocks = nullptr;
  SampleRowSource* rows = nullptr;
  GrammarPath* grammar = nullptr;  // null: any token may follow
  DraftTree* tree = nullptr;       // out: drafts are added below the nodes already in it
  // Asked before every pass of a model after the first; null: draft as much as the limits allow.
  // The same for all requests of a call, as is what it has planned for the step.
  const DraftPolicy* policy = nullptr;
  const DraftPlan* step = nullptr;
  // Out: number of tokens of the text that the draft continues; 0: none, or unknown
  int match_length = 0;
  // out: set where drafting failed for this request. The other requests are still drafted for.
  std::exception_ptr error;
};

// Adds a deterministic draft and returns its node; -1 if the token is not in the tree and the tree
// is full.
inline int add_draft(const DraftRequest& request, int parent, int32_t token, float survival,
                     int drafter) {
  DraftTree& tree = *request.tree;
  const bool full = tree.num_drafts() >= request.max_nodes;
  if (full && tree.find_child(parent, token) < 0) return -1;
  return tree.add(parent, token, survival, drafter);
}

// Drafts for each request by itself, on the pool's threads or, where `pool` is null, on this one.
// An exception becomes the error of its request; requests that already have an error are skipped.
template <class Draft>
void draft_each(std::span<DraftRequest> requests, ThreadPool* pool, const Draft& draft) {
  for_each_index(pool, requests.size(), [&](size_t i) {
    DraftRequest& request = requests[i];
    if (request.error != nullptr) return;
    try {
      draft(request);
    } catch (...) {
      request.error = std::current_exception();
    }
  });
}

// A sequence that has ended, for whatever reason.
struct FinishedSequence {
  uint64_t sequence = 0;            // ordinal
  std::span<const int32_t> tokens;  // prompt and output
  int num_prompt_tokens = 0;
  std::string_view cache_salt = {};  // RequestOptions::cache_salt
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual DrafterTraits traits() const = 0;
  virtual void draft(std::span<DraftRequest> requests) = 0;
  // Tokens that the drafter's model has to run before it can draft, the root included; 0: no model.
  virtual int num_unseen(const DraftRequest&) const { return 0; }
  // The forward passes of the last draft(), sampling included.
  virtual std::span<const TimedPass> passes() const { return {}; }
  virtual void finish(const FinishedSequence&) {}
  // Host memory held, for metrics.
  virtual int64_t memory_bytes() const { return 0; }
};

}  // namespace specdec
