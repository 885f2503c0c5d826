// How one request samples. Names, meaning and order of application are vLLM's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "specdec/logits_processor.h"

namespace specdec {

struct SamplingParams {
  int n = 1;                        // completions of the prompt; completion i uses seed + i
  float temperature = 1.0f;         // 0: greedy
  float top_p = 1.0f;               // (0, 1]
  int top_k = 0;                    // 0 or -1: all
  float min_p = 0.0f;               // [0, 1], relative to the most likely token
  float presence_penalty = 0.0f;    // [-2, 2], tokens of the output
  float frequency_penalty = 0.0f;   // [-2, 2], tokens of the output
  float repetition_penalty = 1.0f;  // > 0, tokens of prompt and output
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, added to its logit
  std::vector<int32_t> allowed_token_ids;             // empty: all
  std::vector<std::vector<int32_t>> bad_words;        // token sequences never completed
  // After logit_bias and before the penalties, one after the other. None may be null.
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;

  int max_tokens = 16;  // tokens generated at most; 0 in C++: up to max_model_len
  int min_tokens = 0;   // no stop token is sampled before this many
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;  // from the checkpoint; ignored with ignore_eos
  bool ignore_eos = false;

  std::optional<uint64_t> seed;        // none: derived from EngineConfig::seed and arrival order
  std::optional<int> logprobs;         // top-N per generated token beside the sampled one; -1: all
  std::optional<int> prompt_logprobs;  // top-N per prompt token; -1: all

  // Longest draft path of this request; none: the engine's; 0: no speculation. At most the
  // engine's.
  std::optional<int> num_speculative_tokens;

  // Throws InvalidArgument naming the field. `vocab_size` 0 skips the checks that need it.
  void validate(int vocab_size = 0) const;
};

}  // namespace specdec
