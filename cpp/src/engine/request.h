// A user's request inside the engine and its n completions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/path_processor.h"
#include "engine/token_counts.h"
#include "sched/sequence.h"
#include "specdec/acceptance_stats.h"
#include "specdec/request_options.h"
#include "specdec/request_output.h"
#include "specdec/sampling_params.h"
#include "speculation/drafter.h"
#include "speculation/grammar_path.h"

namespace specdec {

struct Request;

// One of a request's completions: the scheduler's sequence and its sampling state.
class CompletionState final : public SampleRowSource {
 public:
  CompletionState(Request& owner, int completion_index, uint64_t noise_seed, uint64_t ordinal,
                  const std::vector<int32_t>& prompt, int block_size, int max_model_len);

  // Drops the storage of the previous step's rows.
  void begin_step() { row_storage_.clear(); }
  SampleRow make_row(std::span<const int32_t> path) override;
  // A row that reports the logprobs of `token` after `path` and samples nothing.
  SampleRow make_known_row(std::span<const int32_t> path, int32_t token);
  // Records a token once the scheduler has kept it.
  void committed(int32_t token);
  // The state of the completion in its grammar; null without one.
  GrammarPath* grammar() { return grammar_.has_value() ? &*grammar_ : nullptr; }

  Request& request;
  const int index;
  const uint64_t seed;  // of this completion's noise
  Sequence sequence;
  AcceptanceStats acceptance;
  std::optional<DraftStep> draft_step;  // of the step under way, where the request records them
  std::shared_ptr<const TappedStates> tapped_states;  // since it finished, where there are taps

 private:
  // Storage for the spans of a row whose values differ from the request's own.
  struct RowStorage {
    std::vector<TokenCount> counts;
    std::vector<int32_t> banned;
    std::optional<PathProcessor> processor;
  };

  // True when penalties read the token counts.
  bool needs_counts() const;
  // Tokens that may not follow `path` although the row's other parameters allow them.
  std::vector<int32_t> banned_tokens(std::span<const int32_t> path, const SampleRow& row) const;

  TokenCounts counts_;  // of prompt and output
  std::optional<GrammarPath> grammar_;
  std::vector<std::unique_ptr<RowStorage>> row_storage_;
};

struct Request {
  Request(uint64_t number, SamplingParams sampling_params, RequestOptions request_options = {})
      : id(number), options(std::move(request_options)), params(std::move(sampling_params)) {
    // Sorted and unique: a sampler has room for each token once.
    std::vector<int32_t>& allowed = params.allowed_token_ids;
    std::ranges::sort(allowed);
    allowed.erase(std::ranges::unique(allowed).begin(), allowed.end());
    if (params.grammar != nullptr) end_with_grammar();
  }

  bool is_finished() const;

  const uint64_t id;  // the caller's
  const RequestOptions options;
  SamplingParams params;
  std::vector<std::unique_ptr<CompletionState>> completions;
  int num_prompt_logprobs = 0;  // prompt positions reported so far
  RequestMetrics metrics;

 private:
  // Nothing may follow the end of a grammar that has one: its end tokens end the completion
  // whatever ignore_eos says.
  void end_with_grammar();
};

// The rows to sample together, and what came of them.
class SampleBatch {
 public:
  void clear();
  // Row `row_id` of the forward pass. Returns its index among the results. With an error, why the
  // row could not be made, that will be the result's.
  size_t add(int32_t row_id, const SampleRow& row, std::exception_ptr error = nullptr);
  // A row of the prompt: the logprobs of the token that follows it.
  size_t add_known_token(int32_t row_id, int32_t token, int num_logprobs);

  std::span<const int32_t> row_ids() const { return row_ids_; }
  std::span<const SampleRow> rows() const { return rows_; }
  const std::exception_ptr& error(size_t index) const { return errors_[index]; }
  // One a row, cleared for a new run.
  std::span<SampleResult> fresh_results();
  SampleResult& result(size_t index) { return results_[index]; }
  size_t size() const { return rows_.size(); }

 private:
  std::vector<int32_t> row_ids_;
  std::vector<SampleRow> rows_;
  std::vector<std::exception_ptr> errors_;
  std::vector<SampleResult> results_;
};

}  // namespace specdec
