// Parsing of config.json that several families share.
#pragma once

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// Values that transformers assumes where config.json has none.
struct FamilyDefaults {
  int max_position_embeddings = 0;
  int num_kv_heads = 0;  // 0: equal to the number of heads
  int head_dim = 0;      // 0: hidden_size / num_heads
  const char* norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
  bool has_partial_rotary = false;  // whether partial_rotary_factor may be set otherwise
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tie_word_embeddings = false;
};

Activation parse_activation(const JsonFields& fields, const char* key, const char* absent);

// Makes num_hidden_layers layers like `layer`, with the usual attention scale.
void parse_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig& config);

// Parses sizes, heads, norms and activation of a network with RMS norms and gated MLPs. Ropes,
// biases, windows, experts and all differences are the family's task.
void parse_sizes(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config);

// The same, with one rope for all layers.
void parse_rotary_family(const JsonFields& fields, const FamilyDefaults& defaults,
                         ModelConfig& config);

// Sets the attention scale of all layers to 1 / sqrt(query_pre_attn_scalar).
void parse_query_scalar(const JsonFields& fields, double absent, ModelConfig& config);

// Throws CheckpointError unless the rotated part of a head can be rotated. Families without
// `has_partial` must rotate whole heads: for those, transformers ignores the factor and other code
// does not.
void check_rotary_dim(const JsonFields& fields, const ModelConfig& config,
                      bool has_partial = false);

// sliding_window; absent, null or 0: no window.
int parse_window(const JsonFields& fields, int absent);
void set_windows(int window, ModelConfig& config);

// Checks layer_types in a family whose layers all have the same attention.
void check_uniform_layer_types(const JsonFields& fields, const ModelConfig& config);

// Whether each layer is "sliding_attention", from layer_types; empty where config.json has none.
// The only other known kind is "full_attention".
std::vector<bool> parse_sliding_layers(const JsonFields& fields, const ModelConfig& config);

// Parses num_experts_per_tok and the number of experts.
void parse_experts(const JsonFields& fields, int num_experts, int num_per_token,
                   ModelConfig& config);

}  // namespace specdec
