// LFM2: most layers are gated short convolutions in place of attention. LFM2-MoE: experts behind
// the first layers.
#include <algorithm>
#include <string>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

FamilyDefaults defaults_of(const char* inner_size_key) {
  return {.max_position_embeddings = 128000,
          .num_kv_heads = 8,
          .inner_size_key = inner_size_key,
          .norm_eps_key = "norm_eps",
          .norm_eps = 1e-5,
          .rope_theta = 1e6,
          .activation_key = nullptr,
          .tie_word_embeddings = true};
}

// Keys of the authors' own code repeat sizes, or say what transformers does anyway.
void check_repeated_keys(const JsonFields& fields, const ModelConfig& config) {
  for (const char* key : {"block_dim", "conv_dim", "conv_dim_out"}) {
    if (fields.get_int(key, config.hidden_size) != config.hidden_size) {
      fields.fail(key, str_cat("expected hidden_size, ", config.hidden_size));
    }
  }
  const int num_heads = fields.get_int("num_attention_heads");
  if (fields.get_int("num_heads", num_heads) != num_heads) {
    fields.fail("num_heads", str_cat("expected num_attention_heads, ", num_heads));
  }
  const double norm_eps = fields.get_number("norm_eps", 1e-5);
  if (fields.get_number("block_norm_eps", norm_eps) != norm_eps) {
    fields.fail("block_norm_eps", str_cat("expected norm_eps, ", norm_eps));
  }
  for (const char* key : {"block_use_swiglu", "use_pos_enc"}) {
    if (!fields.get_bool(key, true)) fields.fail(key, "is false, and only true is implemented");
  }
  fields.pass_over({"block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
                    "conv_use_xavier_init"});
}

void parse_layer_kinds(const JsonFields& fields, ModelConfig& config) {
  config.qk_norm = QkNorm::kPerHead;
  config.mixer_bias = config.conv_bias = fields.get_bool("conv_bias", false);
  config.tie_word_embeddings = fields.get_bool("tie_embedding", config.tie_word_embeddings);
  const std::vector<double> full = fields.get_numbers("full_attn_idxs");
  const bool lists_full = fields.has("full_attn_idxs");
  parse_recurrent_layers(
      fields,
      {.mixer = Mixer::kShortConv,
       .state = {.conv_channels = config.hidden_size,
                 .conv_width = parse_conv_width(fields, "conv_L_cache", 3)},
       .types = {"conv"}},
      [&](int layer) { return lists_full && std::ranges::find(full, double(layer)) == full.end(); },
      config);
}

// The inner size of the MLPs follows from the one in config.json.
int parse_adjusted_size(const JsonFields& fields, int size) {
  const int multiple = fields.get_int("block_multiple_of", 256);
  const double factor = fields.get_positive("block_ffn_dim_multiplier", 1.0);
  if (!fields.get_bool("block_auto_adjust_ff_dim", true)) return size;
  const int64_t adjusted = int64_t{2} * size / 3;
  if (fields.is_null("block_ffn_dim_multiplier")) return static_cast<int>(adjusted);
  const auto scaled = static_cast<int64_t>(factor * static_cast<double>(adjusted));
  const int64_t rounded = (scaled + multiple - 1) / multiple * multiple;
  if (rounded < 1 || rounded > 1 << 30) {
    fields.fail("block_ffn_dim_multiplier", str_cat("gives MLPs of ", rounded));
  }
  return static_cast<int>(rounded);
}

void parse_lfm2(const JsonFields& fields, ModelConfig& config) {
  const char* inner_size_key = fields.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  parse_rotary_family(fields, defaults_of(inner_size_key), config);
  fields.pass_over({"intermediate_size"});
  const int inner_size = parse_adjusted_size(fields, config.layers.front().inner_size);
  for (LayerSpec& layer : config.layers) layer.inner_size = inner_size;
  parse_layer_kinds(fields, config);
  check_repeated_keys(fields, config);
}

// transformers adds 1e-6 to the sum by which it divides the weights of experts. That is left out.
void parse_lfm2_moe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, defaults_of("intermediate_size"), config);
  parse_layer_kinds(fields, config);
  const int num_dense = fields.get_int("num_dense_layers", 2, 0);
  parse_experts(
      fields,
      {.num_experts = 32,
       .num_per_token = 4,
       .inner_key = "moe_intermediate_size",
       .inner_size = 1792},
      [&](int layer) { return layer >= num_dense; }, config);
  config.router_scores = RouterScores::kSigmoid;
  config.renormalize_experts = fields.get_bool("norm_topk_prob", true);
  config.expert_scale = static_cast<float>(fields.get_positive("routed_scaling_factor", 1.0));
  if (!fields.get_bool("use_expert_bias", true)) config.names.selection_bias = {};
  check_repeated_keys(fields, config);
}

constexpr TensorNames kNames = {
    .final_norm = "model.embedding_norm",
    .attention_norm = "operator_norm",
    .q_norm = "self_attn.q_layernorm",
    .k_norm = "self_attn.k_layernorm",
    .attention_out = "self_attn.out_proj",
    .mixer = "conv",
    .mixer_conv = "conv",
    .mlp_norm = "ffn_norm",
    .mlp_in = {"feed_forward.w1", "feed_forward.w3"},
    .mlp_out = "feed_forward.w2",
    .router = "feed_forward.gate",
    .selection_bias = "feed_forward.expert_bias",
    .experts = "feed_forward.experts",
    .expert = {"w1", "w3", "w2"},
    .stacked_experts = {"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"}};

}  // namespace

extern const Family kLfm2 = {"Lfm2ForCausalLM", "lfm2", kNames, parse_lfm2};
extern const Family kLfm2Moe = {"Lfm2MoeForCausalLM", "lfm2_moe", kNames, parse_lfm2_moe};

}  // namespace specdec
