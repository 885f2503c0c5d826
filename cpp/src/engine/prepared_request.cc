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

PreparedParams::PreparedParams(const ModelInfo& engine, SamplingParams params)
    : limits_(Limits::of(engine)),
      params_(std::make_shared<const SamplingParams>(std::move(params))) {
  params_->validate(limits_.vocab_size);
  if (params_->grammar != nullptr && params_->grammar->vocab_size() != limits_.vocab_size) {
    throw InvalidArgument("grammar",
                          str_cat("is for a vocabulary of ", params_->grammar->vocab_size(),
                                  " tokens, but the model has ", limits_.vocab_size));
  }
  if (params_->num_speculative_tokens.value_or(0) > limits_.num_speculative_tokens) {
    throw InvalidArgument(
        "num_speculative_tokens",
        str_cat(*params_->num_speculative_tokens, " is more than the engine's (",
                limits_.num_speculative_tokens, "); raise that of speculative_config"));
  }
}

PreparedRequest::PreparedRequest(PreparedParams params, std::vector<int32_t> prompt_token_ids,
                                 RequestOptions options, const std::string& prompt_name)
    : params_(std::move(params)),
      prompt_token_ids_(std::move(prompt_token_ids)),
      options_(std::move(options)) {
  check_prompt(prompt_name);
  if (options_.priority != 0 && !params_.limits_.has_priorities) {
    throw InvalidArgument("priority",
                          str_cat("is ", options_.priority,
                                  ", but the engine serves requests in the order they come; leave "
                                  "priority out, or make the engine with "
                                  "scheduling_policy=\"priority\""));
  }
  if (!options_.resumed_token_ids.empty()) check_resumed();
}

PreparedRequest PreparedRequest::part(int first, int count) const {
  SPECDEC_CHECK(first >= 0 && count >= 1 && first + count <= params().n);
  PreparedRequest part = *this;
  if (count == params().n) return part;
  SamplingParams own = params();
  own.n = count;
  if (own.seed.has_value()) *own.seed += static_cast<uint64_t>(first);
  if (first > 0) own.prompt_logprobs.reset();
  part.params_.params_ = std::make_shared<const SamplingParams>(std::move(own));
  return part;
}

void PreparedRequest::check_for(const ModelInfo& engine) const {
  if (params_.limits_ == PreparedParams::Limits::of(engine)) return;
  throw InvalidArgument("request", "was prepared for another engine; prepare it for this one");
}

void PreparedRequest::check_prompt(const std::string& name) const {
  if (prompt_token_ids_.empty()) {
    throw InvalidArgument(
        name, "must not be empty: the decoder prompt cannot be empty; give at least one token");
  }
  const int longest = params_.limits_.max_model_len;
  if (prompt_token_ids_.size() >= static_cast<size_t>(longest)) {
    refuse_length(name, str_cat(prompt_token_ids_.size()), longest);
  }
  check_tokens(name, prompt_token_ids_, params_.limits_.vocab_size);
}

void PreparedRequest::refuse_length(const std::string& prompt_name, const std::string& amount,
                                    int max_model_len) {
  throw InvalidArgument(
      prompt_name,
      str_cat("has ", amount,
              " tokens. With one output token it is longer than the maximum model length of ",
              max_model_len, ": this model's maximum context length is ", max_model_len,
              " tokens (max_model_len). Please reduce the length of ",
              prompt_name.starts_with("prompt") ? "the prompt" : prompt_name,
              ", or raise max_model_len"));
}

void PreparedRequest::check_resumed() const {
  if (params().n != 1) {
    throw InvalidArgument("resumed_token_ids", "needs n = 1; ask for each completion on its own");
  }
  check_tokens("resumed_token_ids", options_.resumed_token_ids, params_.limits_.vocab_size);
  const Request request(0, params());  // knows all tokens that end it
  Sequence sequence(0, prompt_token_ids_, request.params, /*block_size=*/16,
                    params_.limits_.max_model_len);
  for (const int32_t token : options_.resumed_token_ids) {
    if (sequence.append(token) == FinishReason::kNone) continue;
    throw InvalidArgument("resumed_token_ids",
                          str_cat("number ", sequence.num_output_tokens(), ", token ", token,
                                  ", ends the answer; give those of an answer that goes on"));
  }
}

}  // namespace specdec
