// What several families read from config.json in the same way.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// What transformers assumes where config.json is silent.
struct FamilyDefaults {
  int max_position_embeddings = 0;
  int num_kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;      // 0: hidden_size / num_heads
  const char* norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
  bool has_partial_rotary = false;  // whether partial_rotary_factor may be another
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tie_word_embeddings = false;
};

Activation parse_activation(const JsonFields& fields, const char* key, const char* absent);

// num_hidden_layers: that many layers like `layer`, with the usual attention scale.
void parse_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig& config);

// Sizes, heads, norms and activation of a network of RMS norms and gated MLPs. Ropes, biases,
// windows, experts and whatever differs are the family's own.
void parse_sizes(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config);

// The same with one rope for all layers.
void parse_rotary_family(const JsonFields& fields, const FamilyDefaults& defaults,
                         ModelConfig& config);

// 1 / sqrt(query_pre_attn_scalar), in all layers.
void parse_query_scalar(const JsonFields& fields, double absent, ModelConfig& config);

// Throws CheckpointError unless the rotated part of a head can be rotated, and is a whole head but
// in families that `has_partial`: elsewhere transformers does not read the factor, and others do.
void check_rotary_dim(const JsonFields& fields, const ModelConfig& config,
                      bool has_partial = false);

// sliding_window; absent, null or 0 where a family has no window.
int parse_window(const JsonFields& fields, int absent);
void set_windows(int window, ModelConfig& config);

// layer_types where a family has the same attention in all layers: must say nothing else.
void check_uniform_layer_types(const JsonFields& fields, const ModelConfig& config);

// layer_types, or empty where config.json has none: whether each layer is "sliding_attention";
// "full_attention" is the only other kind that is known.
std::vector<bool> parse_sliding_layers(const JsonFields& fields, const ModelConfig& config);

// num_experts_per_tok and the number of experts.
void parse_experts(const JsonFields& fields, int num_experts, int num_per_token,
                   ModelConfig& config);

}  // namespace specdec
