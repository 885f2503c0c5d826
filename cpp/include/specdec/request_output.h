// The results of Engine::step() for each request that made progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "specdec/acceptance_stats.h"

namespace specdec {

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };

struct Logprob {
  int32_t token_id = 0;
  float logprob = 0.0f;
  int rank = 0;  // 1: the most likely token of its position
};

// The chosen token first, then the top-N in falling order (the chosen one may stand there again).
using PositionLogprobs = std::vector<Logprob>;

// States of the target by token: [num_tokens, num_taps, hidden_size] elements of `dtype`, the one
// it computes in. Their tokens are the prompt's and the completion's, except for the last, which
// was not computed from.
struct TappedStates {
  int num_tokens = 0;
  int num_taps = 0;
  int hidden_size = 0;
  std::string dtype;
  std::vector<std::byte> values;
};

// A token that was drafted and verified.
struct DraftedToken {
  int32_t token_id = 0;
  int parent = -1;      // the drafted token it follows, by index; -1: the last committed one
  std::string drafter;  // the name of its method
  // That it is kept where its parent is, as its drafter thinks; unknown where the device drafted.
  std::optional<float> probability;
  bool is_accepted = false;
};

// The tokens that one step drafted for a completion, and the number kept.
struct DraftStep {
  int num_draft_tokens = 0;  // verified: nodes of a tree
  int num_accepted_tokens = 0;
  // The tree, parents before children, where SamplingParams::record_draft_trees asks for it.
  std::vector<DraftedToken> tree;
};

struct CompletionOutput {
  int index = 0;                               // which of the request's n completions
  std::vector<int32_t> new_token_ids;          // since the last RequestOutput
  std::vector<PositionLogprobs> new_logprobs;  // one per new token when logprobs were asked for
  FinishReason finish_reason = FinishReason::kNone;
  // Drafts and accepted drafts of this completion so far; only on an engine that speculates.
  std::optional<AcceptanceStats> acceptance;
  // For this step, where drafts were verified and SamplingParams::record_draft_steps or
  // record_draft_trees asks for it.
  std::optional<DraftStep> draft_step;
  std::optional<int32_t> stop_token_id;  // the stop token that ended it, if one of stop_token_ids
  // On an engine with taps, once the completion has ended by itself; null if it was aborted.
  std::shared_ptr<const TappedStates> tapped_states;
};

struct RequestMetrics {
  double arrival_time = 0;  // seconds, steady clock of the engine
  double first_scheduled_time = 0;
  double first_token_time = 0;
  double finished_time = 0;
  int num_cached_tokens = 0;  // prompt tokens served by the prefix cache (first completion)
  int num_preemptions = 0;
};

struct RequestOutput {
  uint64_t request_id = 0;                // as Engine::add_request was given it
  std::vector<CompletionOutput> outputs;  // completions that changed in this step
  // Prompt logprobs that became known in this step, first token of the prompt excluded (it has
  // none).
  std::vector<PositionLogprobs> new_prompt_logprobs;
  bool finished = false;  // all completions have ended
  std::string error;      // why it ended with FinishReason::kError; empty otherwise
  // EngineFailed or RankFailure, with the same text, where the error is the engine's, which has
  // ended with it; else null.
  std::exception_ptr engine_failure;
  RequestMetrics metrics;
};

}  // namespace specdec
