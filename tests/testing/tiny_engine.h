// Engines of a tiny Llama on the CPU, and what they are asked.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "specdec/engine.h"
#include "testing/answers.h"
#include "testing/tiny_llama.h"
#include "testing/with_drafter.h"

namespace specdec::testing::tiny_llama {

class EngineFixture : public ::testing::Test {
 protected:
  EngineFixture() {
    write_checkpoint(target_, llama_tensors());
    write_checkpoint(draft_, perturbed(llama_tensors(), 0.03f));
  }

  EngineConfig config() const {
    EngineConfig config;
    config.model = target_.path();
    config.device = "cpu";
    config.dtype = ModelDType::kFloat32;
    config.num_threads = 2;
    return config;
  }

  DrafterConfig drafter(DraftMethod method) const {
    return drafter_of(method, method == DraftMethod::kDraftModel ? draft_.path() : "");
  }

  TempDirectory target_;
  TempDirectory draft_;  // the target, perturbed
};

inline std::vector<int32_t> prompt_of(int i, int length) {
  std::vector<int32_t> prompt;
  for (int j = 0; j < length; ++j) prompt.push_back((i * 5 + j * 3) % kVocab);
  return prompt;
}
inline std::vector<int32_t> prompt_of(int i) { return prompt_of(i, 3 + i % 20); }

inline std::vector<std::vector<int32_t>> prompts_of(int count) {
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(prompt_of(i));
  return prompts;
}

inline SamplingParams sampled(int max_tokens) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  params.seed = 5;
  return params;
}

// Four requests. Each prompt is `growth` tokens longer than the one before; the third request asks
// for two completions.
inline std::vector<Asked> four_requests(int max_tokens, int growth) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.repetition_penalty = 1.2f;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.logprobs = 2;
  std::vector<Asked> requests;
  for (int i = 0; i < 4; ++i) {
    params.seed = 100 * (i + 1);
    requests.push_back(
        {.id = str_cat("r", i), .prompt = prompt_of(i, 5 + growth * i), .params = params});
  }
  requests[0].params.prompt_logprobs = 1;
  requests[2].params.n = 2;
  return requests;
}

}  // namespace specdec::testing::tiny_llama
