// Requests whose prompt, parameters and options were checked, once, for an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "specdec/config.h"
#include "specdec/request_options.h"
#include "specdec/sampling_params.h"

namespace specdec {

// Parameters that requests may share.
class PreparedParams {
 public:
  // For an engine with this Engine::model_info(). Throws InvalidArgument for a bad parameter.
  PreparedParams(const ModelInfo& engine, SamplingParams params);

  const SamplingParams& get() const { return *params_; }

 private:
  friend class PreparedRequest;

  // The limits within which an engine admits requests.
  struct Limits {
    int vocab_size = 0;
    int max_model_len = 0;
    int num_speculative_tokens = 0;
    bool has_priorities = false;

    static Limits of(const ModelInfo& engine) {
      return {.vocab_size = engine.vocab_size,
              .max_model_len = engine.max_model_len,
              .num_speculative_tokens = engine.num_speculative_tokens,
              .has_priorities = engine.has_priorities};
    }
    bool operator==(const Limits&) const = default;
  };

  Limits limits_;
  std::shared_ptr<const SamplingParams> params_;
};

class PreparedRequest {
 public:
  // Throws InvalidArgument for an empty or too long prompt, a token out of vocabulary or a bad
  // option; its messages call the prompt `prompt_name`.
  PreparedRequest(PreparedParams params, std::vector<int32_t> prompt_token_ids,
                  RequestOptions options = {}, const std::string& prompt_name = "prompt");
  PreparedRequest(const ModelInfo& engine, std::vector<int32_t> prompt_token_ids,
                  SamplingParams params, RequestOptions options = {})
      : PreparedRequest(PreparedParams(engine, std::move(params)), std::move(prompt_token_ids),
                        std::move(options)) {}

  // Completions [first, first + count) of the n, as a separate request that samples the same tokens
  // as in the whole. The prompt's logprobs come with completion 0.
  PreparedRequest part(int first, int count) const;

  const std::vector<int32_t>& prompt_token_ids() const { return prompt_token_ids_; }
  const SamplingParams& params() const { return params_.get(); }
  const RequestOptions& options() const { return options_; }

  // Throws InvalidArgument unless the request was prepared for an engine like this one.
  void check_for(const ModelInfo& engine) const;

  // Throws the InvalidArgument of a prompt that is too long; `amount` is how many tokens it has.
  [[noreturn]] static void refuse_length(const std::string& prompt_name, const std::string& amount,
                                         int max_model_len);

 private:
  void check_prompt(const std::string& name) const;
  // Whether options.resumed_token_ids are the beginning of an answer that goes on.
  void check_resumed() const;

  PreparedParams params_;
  std::vector<int32_t> prompt_token_ids_;
  RequestOptions options_;
};

}  // namespace specdec
