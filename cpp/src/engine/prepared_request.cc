#include "specdec/prepared_request.h"

#include <cstddef>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "engine/request.h"
#include "sched/sequence.h"
#include "specdec/error.h"
#include "specdec/grammar.h"

namespace specdec {
namespace {

void check_tokens(const std::string& field, const std::vector<int32_t>& tokens, int vocab_size) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      throw InvalidArgument(
          field, str_cat("has the token id ", token,
                         ", which is out of vocabulary: ids are in [0, ", vocab_size, ")"));
    }
  }
}

}  // namespace

PreparedRequest::PreparedRequest(const ModelInfo& engine, std::vector<int32_t> prompt_token_ids,
                                 SamplingParams params, RequestOptions options,
                                 const std::string& prompt_name)
    : limits_(Limits::of(engine)),
      prompt_token_ids_(std::move(prompt_token_ids)),
      params_(std::move(params)),
      options_(std::move(options)) {
  check_prompt(prompt_name);
  params_.validate(limits_.vocab_size);
  if (params_.grammar != nullptr && params_.grammar->vocab_size() != limits_.vocab_size) {
    throw InvalidArgument("grammar",
                          str_cat("is for a vocabulary of ", params_.grammar->vocab_size(),
                                  " tokens, but the model has ", limits_.vocab_size));
  }
  if (options_.priority != 0 && !limits_.has_priorities) {
    throw InvalidArgument("priority",
                          str_cat("is ", options_.priority,
                                  ", but the engine serves requests in the order they come; leave "
                                  "priority out, or make the engine with "
                                  "scheduling_policy=\"priority\""));
  }
  if (!options_.resumed_token_ids.empty()) check_resumed();
  if (params_.num_speculative_tokens.value_or(0) > limits_.num_speculative_tokens) {
    throw InvalidArgument(
        "num_speculative_tokens",
        str_cat(*params_.num_speculative_tokens, " is more than the engine's (",
                limits_.num_speculative_tokens, "); raise that of speculative_config"));
  }
}

PreparedRequest PreparedRequest::part(int first, int count) const {
  SPECDEC_CHECK(first >= 0 && count >= 1 && first + count <= params_.n);
  PreparedRequest part = *this;
  part.params_.n = count;
  if (part.params_.seed.has_value()) *part.params_.seed += static_cast<uint64_t>(first);
  if (first > 0) part.params_.prompt_logprobs.reset();
  return part;
}

void PreparedRequest::check_for(const ModelInfo& engine) const {
  if (limits_ == Limits::of(engine)) return;
  throw InvalidArgument("request", "was prepared for another engine; prepare it for this one");
}

void PreparedRequest::check_prompt(const std::string& name) const {
  if (prompt_token_ids_.empty()) {
    throw InvalidArgument(name, "the decoder prompt cannot be empty; give at least one token");
  }
  const int longest = limits_.max_model_len;
  if (prompt_token_ids_.size() >= static_cast<size_t>(longest)) {
    throw InvalidArgument(
        name, str_cat("has ", prompt_token_ids_.size(),
                      " tokens. With one output token it is longer than the maximum model length "
                      "of ",
                      longest, ": this model's maximum context length is ", longest,
                      " tokens (max_model_len). Please reduce the length of the prompt, or raise "
                      "max_model_len"));
  }
  check_tokens(name, prompt_token_ids_, limits_.vocab_size);
}

void PreparedRequest::check_resumed() const {
  if (params_.n != 1) {
    throw InvalidArgument("resumed_token_ids", "needs n = 1; ask for each completion on its own");
  }
  check_tokens("resumed_token_ids", options_.resumed_token_ids, limits_.vocab_size);
  const Request request(0, params_);  // knows all tokens that end it
  Sequence sequence(0, prompt_token_ids_, request.params, /*block_size=*/16, limits_.max_model_len);
  for (const int32_t token : options_.resumed_token_ids) {
    if (sequence.append(token) == FinishReason::kNone) continue;
    throw InvalidArgument("resumed_token_ids",
                          str_cat("number ", sequence.num_output_tokens(), ", token ", token,
                                  ", ends the answer; give those of an answer that goes on"));
  }
}

}  // namespace specdec
