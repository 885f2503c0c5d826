// Parsing of config.json that several families share.
#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>

#include "model/config.h"
#include "model/json_file.h"

namespace specdec {

// Values that transformers assumes where config.json has none.
struct FamilyDefaults {
  int max_position_embeddings = 0;
  int num_kv_heads = 0;                              // 0: equal to the number of heads
  int head_dim = 0;                                  // 0: hidden_size / num_heads
  const char* inner_size_key = "intermediate_size";  // null: the family reads it
  const char* norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
  bool has_partial_rotary = false;            // whether partial_rotary_factor may be set otherwise
  const char* activation_key = "hidden_act";  // null: the family reads it
  const char* activation = "silu";
  bool tie_word_embeddings = false;
};

Activation parse_activation(const JsonFields& fields, const char* key, const char* absent);

// Makes num_hidden_layers layers like `layer`, with the attention scale of its heads.
void parse_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig& config);

// Parses sizes, heads, norms and activation of a network with RMS norms and gated MLPs. Ropes,
// biases, windows, experts and all differences are the family's task.
void parse_sizes(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config);

// The same, with one rope for all layers.
void parse_rotary_family(const JsonFields& fields, const FamilyDefaults& defaults,
                         ModelConfig& config);

// A cap of scores or logits; null, unlike an absent key, means none.
float parse_soft_cap(const JsonFields& fields, const char* key, double absent);

// Sets the attention scale of all layers to 1 / sqrt(query_pre_attn_scalar).
void parse_query_scalar(const JsonFields& fields, double absent, ModelConfig& config);

// Gives `window` to the layers that layer_types names, or, where config.json has none, to those for
// which `is_sliding` of the layer's index holds.
void parse_windows(const JsonFields& fields, int window, const std::function<bool(int)>& is_sliding,
                   ModelConfig& config);
// The same with all layers but each `pattern`-th; 0: none.
void parse_windows_but_each(const JsonFields& fields, int window, int pattern, ModelConfig& config);

// Ropes of layers with full attention and of those with a window: of rope_parameters, where it has
// one for each; else the one of config.json, and a default one with `sliding_theta`. The windows
// must be known.
void parse_ropes_by_window(const JsonFields& fields, double theta, double sliding_theta,
                           ModelConfig& config);

// The recurrent layers of a family, which are alike.
struct RecurrentLayers {
  Mixer mixer = Mixer::kAttention;
  StateShape state = {};
  std::initializer_list<std::string_view> types;  // their names in layer_types
  const char* types_key = "layer_types";
};
// The number of taps of a recurrent layer's convolution.
int parse_conv_width(const JsonFields& fields, const char* key, int absent);
// Throws CheckpointError naming `key_dim_key` where the matrices of a state cannot be computed
// with.
void check_state_sizes(const JsonFields& fields, const char* key_dim_key, const StateShape& state);
// Makes the layers recurrent that layer_types names, or, where config.json has none, those for
// which `is_recurrent` of the layer's index holds. The others are of full attention; one must be.
void parse_recurrent_layers(const JsonFields& fields, const RecurrentLayers& recurrent,
                            const std::function<bool(int)>& is_recurrent, ModelConfig& config);

// num_kv_shared_layers: the last layers read the keys and values of the last layer before them that
// has their kind of attention. The windows must be known.
void parse_shared_kv(const JsonFields& fields, int absent, ModelConfig& config);

// What Gemma 3n and 4 have in common: norms around the blocks and of each head of q, k and v,
// scores without a scale, scaled embeddings.
void parse_gemma_network(const JsonFields& fields, ModelConfig& config);

// Their per-layer embeddings (PLE).
void parse_per_layer_embeddings(const JsonFields& fields, ModelConfig& config);

// Throws CheckpointError where rope_theta stands alone and is another: families that bring a scaled
// rope of their own then take that, whatever rope_theta says.
void check_theta_alone(const JsonFields& fields, double theta);

// Throws CheckpointError unless the rotated part of a head can be rotated. Families without
// `has_partial` must rotate whole heads: for those, transformers ignores the factor and other code
// does not.
void check_rotary_dim(const JsonFields& fields, const ModelConfig& config,
                      bool has_partial = false);

// Throws CheckpointError naming `key` where the KV heads do not divide the heads.
void check_kv_heads(const JsonFields& fields, const char* key, const AttentionHeads& heads);

// sliding_window; absent, null or 0: no window.
int parse_window(const JsonFields& fields, int absent);
// The same, but none unless use_sliding_window is set.
int parse_window_in_use(const JsonFields& fields, int absent);
void set_windows(int window, ModelConfig& config);

// Checks layer_types in a family whose layers all have the same attention.
void check_uniform_layer_types(const JsonFields& fields, const ModelConfig& config);

// What a family's layers with experts are called and have where config.json does not say; numbers
// of 0 it has to say.
struct ExpertDefaults {
  int num_experts = 0;
  const char* per_token_key = "num_experts_per_tok";
  int num_per_token = 0;
  const char* inner_key = nullptr;  // of the experts' inner size; null: the MLP's
  int inner_size = 0;
};
// Makes the layers for which `has_experts` holds layers of experts; null: all layers. The number of
// experts is one of the keys num_local_experts, num_experts, n_routed_experts and moe_num_experts.
void parse_experts(const JsonFields& fields, const ExpertDefaults& defaults,
                   const std::function<bool(int)>& has_experts, ModelConfig& config);

// The same where layers of dense MLPs are listed in mlp_only_layers, or are not each
// decoder_sparse_step-th; norm_topk_prob, absent `renormalizes`.
void parse_sparse_layers(const JsonFields& fields, const ExpertDefaults& defaults,
                         bool renormalizes, ModelConfig& config);

// The router of DeepSeek-V3 and its kin: sigmoids, a bias that takes part in the choice, groups.
void parse_sigmoid_router(const JsonFields& fields, bool renormalizes, ModelConfig& config);

// Gives an MLP beside the experts to layers that have these; 0: none.
void set_shared_inner(int inner_size, ModelConfig& config);

}  // namespace specdec
