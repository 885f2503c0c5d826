// How one request samples. Names, meaning and order of application are vLLM's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "specdec/grammar.h"
#include "specdec/logits_processor.h"
#include "specdec/options.h"

namespace specdec {

struct SamplingParams {
  // kSamplingOptions, below, says what members without a comment mean and which values they take.
  int n = 1;
  float temperature = 1.0f;
  float top_p = 1.0f;
  int top_k = 0;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;
  // After logit_bias and before the penalties, one after the other. None may be null.
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;
  // The grammar that the text must match; null: any text. without() (bad_words.h) makes one from
  // bad words.
  std::shared_ptr<const Grammar> grammar;
  int max_tokens = 16;
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;
  std::optional<uint64_t> seed;
  std::optional<int> logprobs;
  std::optional<int> prompt_logprobs;
  std::optional<int> num_speculative_tokens;
  std::vector<int32_t> prediction;
  bool record_draft_steps = false;
  bool record_draft_trees = false;
  // Throws InvalidArgument naming the field. `vocab_size` 0 skips the checks that need it.
  void validate(int vocab_size = 0) const;
};

inline constexpr std::tuple kSamplingOptions = {
    option(&SamplingParams::n,
           {.name = "n",
            .help = "completions generated for the prompt; completion i samples with seed + i",
            .range = at_least(1)}),
    option(&SamplingParams::temperature,
           {.name = "temperature", .help = "0 is greedy", .range = at_least(0)}),
    option(&SamplingParams::top_p,
           {.name = "top_p",
            .help = "draw from the most likely tokens that together have this probability",
            .range = above(0, 1)}),
    option(&SamplingParams::top_k,
           {.name = "top_k",
            .help = "draw from so many of the most likely tokens; 0 or -1 for all",
            .range = at_least(-1)}),
    option(&SamplingParams::min_p, {.name = "min_p",
                                    .help = "least probability relative to the most likely token's",
                                    .range = between(0, 1)}),
    option(&SamplingParams::presence_penalty,
           {.name = "presence_penalty",
            .help = "subtracted once from tokens the output already contains",
            .range = between(-2, 2)}),
    option(&SamplingParams::frequency_penalty,
           {.name = "frequency_penalty",
            .help = "subtracted once per occurrence in the output",
            .range = between(-2, 2)}),
    option(&SamplingParams::repetition_penalty,
           {.name = "repetition_penalty",
            .help = "divides (or multiplies) logits of tokens in prompt and output",
            .range = above(0)}),
    option(&SamplingParams::logit_bias,
           {.name = "logit_bias", .help = "token ids and the numbers added to their logits"}),
    option(
        &SamplingParams::allowed_token_ids,
        {.name = "allowed_token_ids", .help = "only these may be generated; without any, all may"}),
    option(&SamplingParams::max_tokens, {.name = "max_tokens",
                                         .help = "tokens generated at most",
                                         .range = at_least(1),
                                         .zero = "as many as max_model_len leaves"}),
    option(&SamplingParams::min_tokens,
           {.name = "min_tokens",
            .help = "tokens generated before any stop condition counts",
            .range = at_least(0)}),
    option(&SamplingParams::stop_token_ids,
           {.name = "stop_token_ids", .help = "token ids that end a completion"}),
    option(&SamplingParams::eos_token_ids,
           {.name = "eos_token_ids", .help = "the checkpoint's, which ignore_eos ignores"}),
    option(&SamplingParams::ignore_eos,
           {.name = "ignore_eos", .help = "keep generating past the end-of-sequence token"}),
    option(&SamplingParams::seed,
           {.name = "seed",
            .help = "fixes the noise of this request; without one it is derived from the engine's "
                    "seed and the order of arrival"}),
    option(&SamplingParams::logprobs,
           {.name = "logprobs",
            .help = "report the top-N logprobs of every generated token beside the sampled one's; "
                    "-1 for the whole vocabulary",
            .range = at_least(-1)}),
    option(&SamplingParams::prompt_logprobs, {.name = "prompt_logprobs",
                                              .help = "the same for every prompt token",
                                              .range = at_least(-1)}),
    option(&SamplingParams::num_speculative_tokens,
           {.name = "num_speculative_tokens",
            .help = "tokens drafted ahead at most, where the engine speculates; 0 drafts none",
            .details = "Without it, what the engine is set to, which is also the most.",
            .range = at_least(0)}),
    option(&SamplingParams::prediction,
           {.name = "prediction",
            .help = "what the answer is expected to be, such as the text that it edits: drafted "
                    "from, where the engine speculates",
            .details = "It changes no answer, and is ignored where the engine does not "
                       "speculate."}),
    option(&SamplingParams::record_draft_steps,
           {.name = "record_draft_steps",
            .help = "report how many tokens each step drafted and kept, where the engine "
                    "speculates"}),
    option(&SamplingParams::record_draft_trees,
           {.name = "record_draft_trees",
            .help = "report every drafted token, with what proposed it and whether it was kept"}),
};

}  // namespace specdec
