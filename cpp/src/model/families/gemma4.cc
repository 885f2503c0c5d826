// Gemma 4 (text): layers with a window and layers of full attention differ in their heads; the last
// layers may read the keys and values of earlier ones, layers may read embeddings of their own, and
// experts may stand beside the dense MLP.
#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "model/config_rope.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kNames = {.attention_output_norm = "post_attention_layernorm",
                                .mlp_norm = "pre_feedforward_layernorm",
                                .mlp_output_norm = "post_feedforward_layernorm",
                                .router = "router.proj",
                                .experts = "experts",
                                .stacked_experts = {"experts.gate_up_proj", "experts.down_proj"},
                                .shared_in = {"mlp.gate_proj", "mlp.up_proj"},
                                .shared_out = "mlp.down_proj",
                                .router_scale = "router.scale",
                                .expert_scales = "router.per_expert_scale",
                                .experts_norm = "pre_feedforward_layernorm_2",
                                .experts_output_norm = "post_feedforward_layernorm_2",
                                .shared_output_norm = "post_feedforward_layernorm_1",
                                .stream_scale = "layer_scalar"};

constexpr int kMaxInner = std::numeric_limits<int>::max() / 2;

bool is_full(const LayerSpec& layer) { return layer.sliding_window == 0; }

void parse_attention(const JsonFields& fields, int window, ModelConfig& config) {
  parse_windows_but_each(fields, parse_window(fields, window), 6, config);
  config.layers.back().sliding_window = 0;  // whatever layer_types says
  if (fields.get_string("use_bidirectional_attention", "") == "all") {
    fields.fail("use_bidirectional_attention",
                "is 'all', and only causal attention is implemented");
  }
}

// Reads the heads that transformers writes for each layer, by the layer's index.
void parse_listed_heads(const JsonFields& fields, ModelConfig& config) {
  constexpr const char* kKey = "per_layer_config";
  if (fields.is_null(kKey)) return;  // none, which is not the same as no such key
  const JsonFields listed = fields.get_object(kKey);
  for (const auto& [key, value] : listed.object().items()) {
    int index = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), index);
    const bool is_index = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    if (!is_index || index < 0 || index >= config.num_layers) {
      listed.fail(key.c_str(), "is not the index of a layer");
    }
    const JsonFields own = listed.get_object(key.c_str());
    AttentionHeads& heads = config.layers[index].heads;
    heads.head_dim = own.get_int("head_dim", heads.head_dim);
    heads.num_kv_heads = own.get_int("num_key_value_heads", heads.num_kv_heads);
    check_kv_heads(own, "num_key_value_heads", heads);
  }
}

// Reads the heads of layers with full attention: of per_layer_config, or else of global_head_dim
// and num_global_key_value_heads. Their values may be their keys (attention_k_eq_v).
void parse_full_heads(const JsonFields& fields, ModelConfig& config) {
  const bool values_are_keys = fields.get_bool("attention_k_eq_v", false);
  const bool is_listed = fields.has("per_layer_config") || fields.is_null("per_layer_config");
  const int global_dim = fields.get_int("global_head_dim", 512);
  const char* kv_heads_key = "num_global_key_value_heads";
  const int global_kv_heads = fields.get_int(kv_heads_key, 0, 0);
  if (is_listed) parse_listed_heads(fields, config);
  for (int i = 0; i < config.num_layers; ++i) {
    LayerSpec& layer = config.layers[i];
    layer.values_are_keys = values_are_keys && is_full(layer);
    if (!is_listed && is_full(layer)) {
      layer.heads.head_dim = global_dim;
      if (values_are_keys && global_kv_heads > 0) layer.heads.num_kv_heads = global_kv_heads;
      check_kv_heads(fields, kv_heads_key, layer.heads);
    }
  }
  for (const LayerSpec& layer : config.layers) {
    const auto is_alike = [&](const LayerSpec& other) { return is_full(other) == is_full(layer); };
    if (std::ranges::find_if(config.layers, is_alike)->heads == layer.heads) continue;
    fields.fail("per_layer_config", "gives layers of one kind heads of several shapes");
  }
}

void parse_ropes(const JsonFields& fields, ModelConfig& config) {
  constexpr double kTheta = 1e6, kSlidingTheta = 1e4;
  if (fields.has("rope_parameters")) {
    return parse_ropes_by_window(fields, kTheta, kSlidingTheta, config);
  }
  config.ropes = {{.kind = RopeKind::kProportional, .theta = kTheta, .partial_rotary_factor = 0.25},
                  {.theta = kSlidingTheta}};
  for (LayerSpec& layer : config.layers) layer.rope = is_full(layer) ? 0 : 1;
  check_rotary_dim(fields, config);
}

void parse_moe(const JsonFields& fields, ModelConfig& config) {
  if (!fields.get_bool("enable_moe_block", false)) {
    fields.pass_over({"num_experts", "top_k_experts", "moe_intermediate_size"});
    return;
  }
  std::vector<int> dense_sizes;
  for (const LayerSpec& layer : config.layers) dense_sizes.push_back(layer.inner_size);
  parse_experts(fields, {.per_token_key = "top_k_experts", .inner_key = "moe_intermediate_size"},
                nullptr, config);
  for (int i = 0; i < config.num_layers; ++i) config.layers[i].shared_inner_size = dense_sizes[i];
}

void parse_any(const JsonFields& fields, int max_position_embeddings, int window,
               ModelConfig& config) {
  parse_sizes(fields,
              {.max_position_embeddings = max_position_embeddings,
               .num_kv_heads = 4,
               .head_dim = 256,
               .activation_key = "hidden_activation",
               .activation = "gelu_pytorch_tanh",
               .tie_word_embeddings = true},
              config);
  parse_gemma_network(fields, config);
  config.logits_soft_cap = parse_soft_cap(fields, "final_logit_softcapping", 0.0);
  parse_attention(fields, window, config);
  parse_full_heads(fields, config);
  parse_ropes(fields, config);
  parse_shared_kv(fields, 0, config);
  if (fields.get_bool("use_double_wide_mlp", false)) {
    for (LayerSpec& layer : config.layers) {
      if (layer.inner_size > kMaxInner) fields.fail("intermediate_size", "cannot be doubled");
      if (layer.kv_source >= 0) layer.inner_size *= 2;
    }
  }
}

void parse_gemma4(const JsonFields& fields, ModelConfig& config) {
  parse_any(fields, 131072, 512, config);
  parse_moe(fields, config);
  parse_per_layer_embeddings(fields, config);
  if (config.per_layer_dim > 0 && config.per_layer_vocab < config.vocab_size) {
    fields.fail("vocab_size_per_layer_input", str_cat(config.per_layer_vocab, " is less than ",
                                                      "vocab_size, ", config.vocab_size));
  }
}

void parse_unified(const JsonFields& fields, ModelConfig& config) {
  parse_any(fields, 262144, 1024, config);
  fields.pass_over({"vocab_size_per_layer_input"});  // of embeddings that it does not have
}

}  // namespace

extern const Family kGemma4 = {"Gemma4ForCausalLM", "gemma4_text", kNames, parse_gemma4};
extern const Family kGemma4Unified = {"Gemma4UnifiedForCausalLM", "gemma4_unified_text", kNames,
                                      parse_unified};

}  // namespace specdec
