// Gemma 2 and Gemma 3 (text): norms before and after each block, windows in some layers, scaled
// embeddings, norm weights stored less one.
#include <cmath>

#include "core/str_cat.h"
#include "model/config_rope.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kNames = {.attention_output_norm = "post_attention_layernorm",
                                .mlp_norm = "pre_feedforward_layernorm",
                                .mlp_output_norm = "post_feedforward_layernorm"};

// The settings shared by all versions.
void parse_gemma(const JsonFields& fields, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) layer.norms = NormPlacement::kInputAndOutput;
  config.norm_offset = 1.0f;
  config.embedding_scale = static_cast<float>(std::sqrt(double(config.hidden_size)));
  config.rounds_embedding_scale = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
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

// A null key, unlike an absent one, means none.
float parse_soft_cap(const JsonFields& fields, const char* key, double absent) {
  if (fields.is_null(key)) return 0.0f;
  return static_cast<float>(fields.get_positive(key, absent));
}

// Gives a window to the layers that layer_types names, or else to all but every `pattern`-th.
void parse_windows(const JsonFields& fields, int pattern, ModelConfig& config) {
  const std::vector<bool> is_sliding = parse_sliding_layers(fields, config);
  const int window = parse_window(fields, 4096);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (is_sliding.empty() ? (layer + 1) % pattern == 0 : !is_sliding[layer]) continue;
    if (window == 0) {
      fields.fail("sliding_window",
                  str_cat("null, but layer ", layer, " is one of sliding attention"));
    }
    config.layers[layer].sliding_window = window;
  }
}

// Layers with a window have their own rope, which transformers 4 spells rope_local_base_freq. The
// scaled rope decides how many positions there are.
void parse_gemma3_ropes(const JsonFields& fields, ModelConfig& config) {
  constexpr double kGlobalTheta = 1e6;
  const double local_theta = fields.get_positive("rope_local_base_freq", 10000.0);
  const int max_positions = config.max_position_embeddings;
  if (has_layer_ropes(fields)) {
    const double global_theta = fields.get_positive("rope_theta", kGlobalTheta);
    config.ropes = {parse_layer_rope(fields, "full_attention", max_positions, global_theta),
                    parse_layer_rope(fields, "sliding_attention", max_positions, local_theta)};
  } else {
    config.ropes = {parse_rope(fields, max_positions, kGlobalTheta), {.theta = local_theta}};
  }
  for (RopeConfig& rope : config.ropes) rope.adds_positions = false;
  for (LayerSpec& layer : config.layers) layer.rope = layer.sliding_window > 0 ? 1 : 0;
  check_rotary_dim(fields, config);
}

void parse_gemma3(const JsonFields& fields, ModelConfig& config) {
  parse_sizes(fields, defaults_of(131072), config);
  parse_gemma(fields, config);
  config.logits_soft_cap = parse_soft_cap(fields, kLogitsCap, 0.0);
  config.qk_norm = QkNorm::kPerHead;
  const int pattern = fields.get_int("_sliding_window_pattern", 6);  // only in some versions
  parse_windows(fields, fields.get_int("sliding_window_pattern", pattern), config);
  parse_gemma3_ropes(fields, config);
}

void parse_gemma2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, defaults_of(8192), config);
  parse_gemma(fields, config);
  const float cap = parse_soft_cap(fields, "attn_logit_softcapping", 50.0);
  for (LayerSpec& layer : config.layers) layer.attention_soft_cap = cap;
  config.logits_soft_cap = parse_soft_cap(fields, kLogitsCap, 30.0);
  parse_windows(fields, 2, config);
}

}  // namespace

const Family kGemma2 = {"Gemma2ForCausalLM", "gemma2", kNames, parse_gemma2};
const Family kGemma3 = {"Gemma3ForCausalLM", "gemma3_text", kNames, parse_gemma3};

}  // namespace specdec
