// A user's request inside the engine and its n completions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/token_counts.h"
#include "sched/sequence.h"
#include "specdec/request_output.h"
#include "specdec/sampling_params.h"

namespace specdec {

struct Request;

// One of a request's completions: the scheduler's sequence and what sampling it needs to know.
struct CompletionState {
  CompletionState(Request& owner, int completion_index, uint64_t noise_seed, uint64_t ordinal,
                  const std::vector<int32_t>& prompt, int block_size, int max_model_len);

  // True when penalties read the token counts.
  bool needs_counts() const;
  // Records a sampled token once the scheduler has kept it.
  void committed(int32_t token);

  Request& request;
  const int index;
  const uint64_t seed;  // of this completion's noise
  Sequence sequence;
  TokenCounts counts;
};

struct Request {
  Request(std::string request_id, SamplingParams sampling_params)
      : id(std::move(request_id)), params(std::move(sampling_params)) {
    std::sort(params.allowed_token_ids.begin(), params.allowed_token_ids.end());
  }

  bool is_finished() const;

  const std::string id;
  SamplingParams params;
  std::vector<std::unique_ptr<CompletionState>> completions;
  int num_prompt_logprobs = 0;  // prompt positions reported so far
  RequestMetrics metrics;
};

// The rows to sample for one step, with the storage their spans point to. Rows stay valid until
// clear() or the next add of the same batch moves nothing: storage is held by pointer.
class SampleBatch {
 public:
  void clear();

  // The next token of `completion`, from row `row_id` of the forward pass.
  void add_next_token(int32_t row_id, const CompletionState& completion);
  // The logprobs of a known token (of the prompt).
  void add_known_token(int32_t row_id, int32_t token, int num_logprobs);

  std::span<const int32_t> row_ids() const { return row_ids_; }
  std::span<const SampleRow> rows() const { return rows_; }
  std::span<SampleResult> results();

 private:
  std::vector<int32_t> row_ids_;
  std::vector<SampleRow> rows_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> banned_;  // storage of banned_token_ids
  std::vector<SampleResult> results_;
};

}  // namespace specdec
