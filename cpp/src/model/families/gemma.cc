// Gemma 1, 2 and 3 (text) and VaultGemma. From Gemma 2 on: norms before and after each block,
// windows in some layers, scaled embeddings, norm weights stored less one.
#include <cmath>

#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kNames = {.attention_output_norm = "post_attention_layernorm",
                                .mlp_norm = "pre_feedforward_layernorm",
                                .mlp_output_norm = "post_feedforward_layernorm"};

// The settings shared by all versions.
void parse_gemma(const JsonFields& fields, NormPlacement norms, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) layer.norms = norms;
  config.norm_offset = 1.0f;
  config.embedding_scale = static_cast<float>(std::sqrt(double(config.hidden_size)));
  config.rounds_embedding_scale = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
}
// By versions after the first.
void parse_later(const JsonFields& fields, NormPlacement norms, ModelConfig& config) {
  parse_gemma(fields, norms, config);
  parse_query_scalar(fields, 256.0, config);
  fields.pass_over({"hidden_act"});  // old files also have it, and transformers does not read it
}

FamilyDefaults defaults_of(int max_position_embeddings) {
  return {.max_position_embeddings = max_position_embeddings,
          .num_kv_heads = 4,
          .head_dim = 256,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh",
          .tie_word_embeddings = true};
}

constexpr const char* kLogitsCap = "final_logit_softcapping";

void parse_gemma3(const JsonFields& fields, ModelConfig& config) {
  parse_sizes(fields, defaults_of(131072), config);
  parse_later(fields, NormPlacement::kInputAndOutput, config);
  config.logits_soft_cap = parse_soft_cap(fields, kLogitsCap, 0.0);
  config.qk_norm = QkNorm::kPerHead;
  const int pattern = fields.get_int("_sliding_window_pattern", 6);  // only in some versions
  parse_windows_but_each(fields, parse_window(fields, 4096),
                         fields.get_int("sliding_window_pattern", pattern), config);
  // As transformers 4 spells the rope of layers with a window.
  parse_ropes_by_window(fields, 1e6, fields.get_positive("rope_local_base_freq", 10000.0), config);
}

void parse_capped(const JsonFields& fields, NormPlacement norms, ModelConfig& config) {
  parse_rotary_family(fields, defaults_of(8192), config);
  parse_later(fields, norms, config);
  const float cap = parse_soft_cap(fields, "attn_logit_softcapping", 50.0);
  for (LayerSpec& layer : config.layers) layer.attention_soft_cap = cap;
  config.logits_soft_cap = parse_soft_cap(fields, kLogitsCap, 30.0);
  parse_windows_but_each(fields, parse_window(fields, 4096), 2, config);
}

void parse_gemma2(const JsonFields& fields, ModelConfig& config) {
  parse_capped(fields, NormPlacement::kInputAndOutput, config);
}

void parse_vault_gemma(const JsonFields& fields, ModelConfig& config) {
  parse_capped(fields, NormPlacement::kInput, config);
}

void parse_gemma1(const JsonFields& fields, ModelConfig& config) {
  FamilyDefaults defaults = defaults_of(8192);
  defaults.num_kv_heads = 16;
  defaults.activation_key = nullptr;
  parse_rotary_family(fields, defaults, config);
  parse_gemma(fields, NormPlacement::kInput, config);
  // The first files say gelu where the approximation is meant.
  config.activation = parse_activation(fields, "hidden_act", "gelu_pytorch_tanh");
  if (config.activation == Activation::kGelu) config.activation = Activation::kGeluTanh;
  fields.pass_over({"hidden_activation"});
}

}  // namespace

extern const Family kGemma = {"GemmaForCausalLM", "gemma", {}, parse_gemma1};
extern const Family kVaultGemma = {"VaultGemmaForCausalLM",
                                   "vaultgemma",
                                   {.mlp_norm = "pre_feedforward_layernorm"},
                                   parse_vault_gemma};
extern const Family kGemma2 = {"Gemma2ForCausalLM", "gemma2", kNames, parse_gemma2};
extern const Family kGemma3 = {"Gemma3ForCausalLM", "gemma3_text", kNames, parse_gemma3};

}  // namespace specdec
