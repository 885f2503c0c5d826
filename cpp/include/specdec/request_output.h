// What Engine::step() returns for each request that made progress.
#pragma once

#include <cstdint>
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

struct CompletionOutput {
  int index = 0;                               // which of the request's n completions
  std::vector<int32_t> new_token_ids;          // since the last RequestOutput
  std::vector<PositionLogprobs> new_logprobs;  // one per new token when logprobs were asked for
  FinishReason finish_reason = FinishReason::kNone;
  // What was drafted for this completion and kept so far; only on an engine that speculates.
  std::optional<AcceptanceStats> acceptance;
  std::optional<int32_t> stop_token_id;  // the stop token that ended it, if one of stop_token_ids
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
  std::string request_id;
  std::vector<CompletionOutput> outputs;  // completions that changed in this step
  // Prompt logprobs that became known in this step, first token of the prompt excluded (it has
  // none).
  std::vector<PositionLogprobs> new_prompt_logprobs;
  bool finished = false;       // all completions have ended
  std::string error;           // why it ended with FinishReason::kError; empty otherwise
  bool engine_failed = false;  // the error is the engine's, which has ended with it
  RequestMetrics metrics;
};

}  // namespace specdec
