// Tiny models with recurrent layers, requests to them and a drafter of their answers.
#pragma once

#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "specdec/speculative_config.h"
#include "testing/answers.h"
#include "testing/checkpoint_files.h"

namespace specdec::testing::recurrent_models {

inline constexpr int kVocab = 61;

// Their weights are made up.
struct RecurrentModel {
  std::string name;
  std::string config;  // members of config.json that all models do not have
};
inline void PrintTo(const RecurrentModel& model, std::ostream* stream) { *stream << model.name; }

inline const RecurrentModel kShortConv{"ShortConv", R"("architectures": ["Lfm2ForCausalLM"],
  "model_type": "lfm2", "block_ff_dim": 96, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
  "layer_types": ["conv", "full_attention", "conv", "conv"])"};
inline const RecurrentModel kGatedDelta{"GatedDelta", R"("architectures": ["Qwen3_5ForCausalLM"],
  "model_type": "qwen3_5_text", "intermediate_size": 96, "head_dim": 16,
  "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
  "linear_num_value_heads": 6, "linear_conv_kernel_dim": 4,
  "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"])"};

inline const RecurrentModel kMamba2{"Mamba2", R"("architectures": ["GraniteMoeHybridForCausalLM"],
  "model_type": "granitemoehybrid", "shared_intermediate_size": 96, "num_local_experts": 0,
  "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
  "mamba_expand": 2, "layer_types": ["mamba", "mamba", "attention", "mamba"])"};

// Wide enough for four ranks, which share the only key head and norm all heads together.
inline const RecurrentModel kWideMamba2{"WideMamba2",
                                        R"("architectures": ["GraniteMoeHybridForCausalLM"],
  "hidden_size": 256, "num_key_value_heads": 4, "model_type": "granitemoehybrid",
  "shared_intermediate_size": 256, "num_local_experts": 0, "mamba_n_heads": 16, "mamba_d_head": 32,
  "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_proj_bias": true,
  "layer_types": ["mamba", "mamba", "attention", "mamba"])"};
// Two ranks have a key head and a norm of their own each. Of four, two share them.
inline const RecurrentModel kMamba2ByKeyHead{"Mamba2ByKeyHead",
                                             R"("architectures": ["GraniteMoeHybridForCausalLM"],
  "hidden_size": 256, "num_key_value_heads": 4, "model_type": "granitemoehybrid",
  "shared_intermediate_size": 256, "num_local_experts": 0, "mamba_n_heads": 16, "mamba_d_head": 32,
  "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2,
  "layer_types": ["mamba", "mamba", "attention", "mamba"])"};

// A model without recurrent layers, to draft for the others.
inline const RecurrentModel kAttention{"Attention", R"("architectures": ["LlamaForCausalLM"],
  "model_type": "llama", "intermediate_size": 96)"};

// Writes the config.json of `model`.
inline void write_config(const RecurrentModel& model, const TempDirectory& directory) {
  std::ofstream(directory.path() + "/config.json") << str_cat(
      R"({"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,)",
      R"( "num_key_value_heads": 2, "max_position_embeddings": 256, "torch_dtype": "float32",)",
      R"( "vocab_size": )", kVocab, ", ", model.config, "}");
}

// Drafts right tokens of known answers and wrong ones beside them, as chains of random length.
class KnownAnswers final : public CustomDrafter {
 public:
  // `is_always_right`: without wrong tokens, and as long as may be.
  explicit KnownAnswers(bool is_always_right) : is_always_right_(is_always_right) {}

  void learn(std::vector<int32_t> tokens) { sequences_.push_back(std::move(tokens)); }

  std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens,
                                            int max_tokens) override {
    std::vector<std::vector<int32_t>> drafts;
    for (const std::vector<int32_t>& sequence : sequences_) {
      if (sequence.size() <= tokens.size() ||
          !std::equal(tokens.begin(), tokens.end(), sequence.begin())) {
        continue;
      }
      const size_t end = std::min(sequence.size(), tokens.size() + max_tokens);
      std::vector<int32_t> right(sequence.begin() + static_cast<ptrdiff_t>(tokens.size()),
                                 sequence.begin() + static_cast<ptrdiff_t>(end));
      if (is_always_right_) return {right};
      right.resize(1 + random_() % right.size());
      std::vector<int32_t> wrong = right;
      wrong[random_() % wrong.size()] = static_cast<int32_t>(random_() % kVocab);
      drafts.push_back(wrong);
      drafts.push_back(right);
      if (random_() % 2) std::swap(drafts.front(), drafts.back());
      break;
    }
    return drafts;
  }

 private:
  bool is_always_right_;
  std::vector<std::vector<int32_t>> sequences_;
  std::mt19937 random_{5};
};

// Greedy and sampled, long and short, some with the same beginning, the sixth with two completions.
inline std::vector<Asked> mixed_requests(int count = 10, int least_tokens = 30) {
  std::mt19937 random(11);
  std::vector<int32_t> beginning;
  for (int i = 0; i < 90; ++i) beginning.push_back(static_cast<int32_t>(random() % kVocab));
  std::vector<Asked> requests;
  for (int i = 0; i < count; ++i) {
    Asked& asked = requests.emplace_back();
    asked.id = str_cat("r", i);
    asked.arrives = 2 * i;
    asked.prompt = beginning;
    asked.prompt.resize(1 + random() % beginning.size());
    if (i == 7) asked.prompt = requests[4].prompt;
    while (asked.prompt.size() < static_cast<size_t>(9 * i)) {
      asked.prompt.push_back(static_cast<int32_t>(random() % kVocab));
    }
    asked.params.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    asked.params.seed = 40 + i;
    asked.params.max_tokens = least_tokens + i;
    asked.params.ignore_eos = true;
    asked.params.logprobs = 2;
    asked.params.n = i == 5 ? 2 : 1;
    if (i == 3) asked.params.prompt_logprobs = 1;
  }
  return requests;
}

inline std::shared_ptr<KnownAnswers> drafter_that_knows(const Answers& answers,
                                                        const std::vector<Asked>& requests,
                                                        bool is_always_right = false) {
  auto drafter = std::make_shared<KnownAnswers>(is_always_right);
  for (const Asked& asked : requests) {
    for (size_t i = 0; i < answers.at(asked.id).completions.size(); ++i) {
      std::vector<int32_t> tokens = asked.prompt;
      for (const std::string& token : answers.at(asked.id).completions[i].tokens) {
        tokens.push_back(std::stoi(token));
      }
      drafter->learn(std::move(tokens));
    }
  }
  return drafter;
}

}  // namespace specdec::testing::recurrent_models
