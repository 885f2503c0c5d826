#include "engine/request.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/token_mask.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Whether the row's mask and list of allowed tokens permit one that is not banned.
bool permits_any(const SampleRow& row, std::span<const int32_t> banned) {
  const auto permits = [&](int32_t token) {
    return is_in(row.allowed_mask, token) && std::ranges::find(banned, token) == banned.end();
  };
  if (!row.allowed_token_ids.empty()) return std::ranges::any_of(row.allowed_token_ids, permits);
  for (size_t word = 0; word < row.allowed_mask.size(); ++word) {
    for (uint32_t left = row.allowed_mask[word]; left != 0; left &= left - 1) {
      if (permits(static_cast<int32_t>(word * 32) + std::countr_zero(left))) return true;
    }
  }
  return false;
}

}  // namespace

CompletionState::CompletionState(Request& owner, int completion_index, uint64_t noise_seed,
                                 uint64_t ordinal, const std::vector<int32_t>& prompt,
                                 int block_size, int max_model_len)
    : request(owner),
      index(completion_index),
      seed(noise_seed),
      sequence(ordinal, prompt, owner.params, block_size, max_model_len) {
  if (needs_counts()) counts_.add_prompt(prompt);
  if (owner.params.grammar != nullptr) grammar_.emplace(*owner.params.grammar);
  for (const int32_t token : owner.options.resumed_token_ids) {
    SPECDEC_CHECK(sequence.append(token) == FinishReason::kNone);
    committed(token);
  }
  sequence.num_resumed_tokens = sequence.num_output_tokens();
}

bool CompletionState::needs_counts() const {
  const SamplingParams& params = request.params;
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// Every stop token while the output is shorter than min_tokens, unless the grammar leaves nothing
// else.
std::vector<int32_t> CompletionState::banned_tokens(std::span<const int32_t> path,
                                                    const SampleRow& row) const {
  const SamplingParams& params = request.params;
  std::vector<int32_t> banned;
  if (sequence.num_output_tokens() + static_cast<int>(path.size()) < params.min_tokens) {
    banned = params.stop_token_ids;
    if (!params.ignore_eos) {
      banned.insert(banned.end(), params.eos_token_ids.begin(), params.eos_token_ids.end());
    }
  }
  if (params.grammar == nullptr || permits_any(row, banned)) return banned;
  if (!permits_any(row, {})) {
    throw GrammarError(
        "structured_outputs, bad_words and allowed_token_ids together leave no token");
  }
  return {};
}

SampleRow CompletionState::make_row(std::span<const int32_t> path) {
  const SamplingParams& params = request.params;
  SampleRow row;
  row.temperature = params.temperature;
  row.top_k = std::max(params.top_k, 0);
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.repetition_penalty = params.repetition_penalty;
  row.presence_penalty = params.presence_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.counts = counts_.counts();
  row.logit_bias = params.logit_bias;
  row.allowed_token_ids = params.allowed_token_ids;
  if (grammar_.has_value()) row.allowed_mask = grammar_->mask_after(path);
  if (needs_counts() && !path.empty()) {
    RowStorage& storage = *row_storage_.emplace_back(std::make_unique<RowStorage>());
    storage.counts = counts_.counts_after(path);
    row.counts = storage.counts;
  }
  if (std::vector<int32_t> banned = banned_tokens(path, row); !banned.empty()) {
    RowStorage& storage = *row_storage_.emplace_back(std::make_unique<RowStorage>());
    storage.banned = std::move(banned);
    row.banned_token_ids = storage.banned;
  }
  if (!params.logits_processors.empty()) {
    RowStorage& storage = *row_storage_.emplace_back(std::make_unique<RowStorage>());
    const std::span<const int32_t> tokens = sequence.output();
    std::vector<int32_t> output(tokens.begin(), tokens.end());
    output.insert(output.end(), path.begin(), path.end());
    row.processor = &storage.processor.emplace(
        params.logits_processors, sequence.tokens().first(sequence.num_prompt_tokens()), output);
  }
  row.seed = seed;
  row.position = sequence.num_tokens() + static_cast<int64_t>(path.size());
  row.want_logprobs = params.logprobs.has_value();
  row.num_logprobs = params.logprobs.value_or(0);
  return row;
}

SampleRow CompletionState::make_known_row(std::span<const int32_t> path, int32_t token) {
  SampleRow row = make_row(path);
  row.forced_token = token;
  return row;
}

void CompletionState::committed(int32_t token) {
  if (needs_counts()) counts_.add_output(token);
  if (grammar_.has_value()) grammar_->commit(token);
}

void Request::end_with_grammar() {
  const std::span<const int32_t> end_token_ids = params.grammar->end_token_ids();
  if (end_token_ids.empty()) return;
  params.ignore_eos = false;
  for (const int32_t token : end_token_ids) {
    if (std::ranges::find(params.eos_token_ids, token) == params.eos_token_ids.end()) {
      params.eos_token_ids.push_back(token);
    }
  }
}

bool Request::is_finished() const {
  return std::all_of(completions.begin(), completions.end(),
                     [](const auto& completion) { return completion->sequence.is_finished(); });
}

void SampleBatch::clear() {
  row_ids_.clear();
  rows_.clear();
  errors_.clear();
}

size_t SampleBatch::add(int32_t row_id, const SampleRow& row, std::exception_ptr error) {
  row_ids_.push_back(row_id);
  rows_.push_back(row);
  errors_.push_back(std::move(error));
  return rows_.size() - 1;
}

size_t SampleBatch::add_known_token(int32_t row_id, int32_t token, int num_logprobs) {
  SampleRow row;
  row.forced_token = token;
  row.want_logprobs = true;
  row.num_logprobs = num_logprobs;
  return add(row_id, row);
}

std::span<SampleResult> SampleBatch::fresh_results() {
  results_.assign(rows_.size(), SampleResult{});
  for (size_t i = 0; i < results_.size(); ++i) results_[i].error = errors_[i];
  return results_;
}

}  // namespace specdec
