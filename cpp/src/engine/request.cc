#include "engine/request.h"

#include <algorithm>
#include <utility>

namespace specdec {
namespace {

// Tokens that may not come next: the end of a bad word whose beginning the output ends with, and
// every stop token while the output is shorter than min_tokens.
std::vector<int32_t> banned_tokens(const Sequence& sequence) {
  const SamplingParams& params = sequence.params;
  const std::span<const int32_t> output = sequence.output();
  std::vector<int32_t> banned;
  for (const std::vector<int32_t>& word : params.bad_words) {
    const size_t prefix = word.size() - 1;
    if (prefix <= output.size() &&
        std::equal(word.begin(), word.end() - 1, output.end() - static_cast<int64_t>(prefix))) {
      banned.push_back(word.back());
    }
  }
  if (sequence.num_output_tokens() < params.min_tokens) {
    banned.insert(banned.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
    if (!params.ignore_eos) {
      banned.insert(banned.end(), params.eos_token_ids.begin(), params.eos_token_ids.end());
    }
  }
  return banned;
}

}  // namespace

CompletionState::CompletionState(Request& owner, int completion_index, uint64_t noise_seed,
                                 uint64_t ordinal, const std::vector<int32_t>& prompt,
                                 int block_size, int max_model_len)
    : request(owner),
      index(completion_index),
      seed(noise_seed),
      sequence(ordinal, prompt, owner.params, block_size, max_model_len) {
  if (needs_counts()) counts.add_prompt(prompt);
}

bool CompletionState::needs_counts() const {
  const SamplingParams& params = request.params;
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

void CompletionState::committed(int32_t token) {
  if (needs_counts()) counts.add_output(token);
}

bool Request::is_finished() const {
  return std::all_of(completions.begin(), completions.end(),
                     [](const auto& completion) { return completion->sequence.is_finished(); });
}

void SampleBatch::clear() {
  row_ids_.clear();
  rows_.clear();
  banned_.clear();
}

void SampleBatch::add_next_token(int32_t row_id, const CompletionState& completion) {
  const SamplingParams& params = completion.request.params;
  SampleRow row;
  row.temperature = params.temperature;
  row.top_k = std::max(params.top_k, 0);
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.repetition_penalty = params.repetition_penalty;
  row.presence_penalty = params.presence_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.counts = completion.counts.counts();
  row.logit_bias = params.logit_bias;
  row.allowed_token_ids = params.allowed_token_ids;
  if (std::vector<int32_t> banned = banned_tokens(completion.sequence); !banned.empty()) {
    banned_.push_back(std::make_unique<std::vector<int32_t>>(std::move(banned)));
    row.banned_token_ids = *banned_.back();
  }
  row.seed = completion.seed;
  row.position = completion.sequence.num_tokens();
  row.want_logprobs = params.logprobs.has_value();
  row.num_logprobs = params.logprobs.value_or(0);
  row_ids_.push_back(row_id);
  rows_.push_back(row);
}

void SampleBatch::add_known_token(int32_t row_id, int32_t token, int num_logprobs) {
  SampleRow row;
  row.forced_token = token;
  row.want_logprobs = true;
  row.num_logprobs = num_logprobs;
  row_ids_.push_back(row_id);
  rows_.push_back(row);
}

std::span<SampleResult> SampleBatch::results() {
  results_.assign(rows_.size(), SampleResult{});
  return results_;
}

}  // namespace specdec
