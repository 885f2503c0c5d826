// Qwen3-Next and Qwen3.5, dense and with experts: most layers are Gated DeltaNets in place of
// attention, and attention's output has a gate.
#include <string>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

FamilyDefaults defaults_of(int num_kv_heads, const char* inner_size_key) {
  return {.max_position_embeddings = 32768,
          .num_kv_heads = num_kv_heads,
          .head_dim = 256,
          .inner_size_key = inner_size_key,
          .partial_rotary_factor = 0.25,
          .has_partial_rotary = true};
}

StateShape parse_state(const JsonFields& fields) {
  StateShape state = {.conv_width = parse_conv_width(fields, "linear_conv_kernel_dim", 4),
                      .num_key_heads = fields.get_int("linear_num_key_heads", 16),
                      .num_heads = fields.get_int("linear_num_value_heads", 32),
                      .key_dim = fields.get_int("linear_key_head_dim", 128),
                      .value_dim = fields.get_int("linear_value_head_dim", 128)};
  if (state.num_heads % state.num_key_heads != 0) {
    fields.fail("linear_num_value_heads",
                str_cat("linear_num_key_heads, ", state.num_key_heads, ", does not divide it"));
  }
  check_state_sizes(fields, "linear_key_head_dim", state);
  state.conv_channels = static_cast<int>(2 * state.key_size() + state.value_size());
  return state;
}

// Keys of which one value is implemented.
void check_gates(const JsonFields& fields, const ModelConfig& config) {
  if (fields.get_bool("attention_bias", false)) {
    fields.fail("attention_bias", "is not implemented where attention's output has a gate");
  }
  if (!fields.get_bool("attn_output_gate", true)) {
    fields.fail("attn_output_gate", "is false, and only true is implemented");
  }
  if (config.activation != Activation::kSilu) {
    fields.fail("hidden_act", "only silu is implemented, which the convolutions have, too");
  }
  const std::string gate = fields.get_string("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") {
    fields.fail("output_gate_type", str_cat("'", gate, "' is not implemented; known: swish, silu"));
  }
  const std::string dtype = fields.get_string("mamba_ssm_dtype", "float32");
  if (dtype != "float32") {
    fields.fail("mamba_ssm_dtype", str_cat("'", dtype, "' is not implemented; known: float32"));
  }
}

void parse_hybrid(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  parse_rotary_family(fields, defaults, config);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    // Positions in time, height and width are equal in text.
    if (fields.has(key)) fields.get_object(key).pass_over({"mrope_section", "mrope_interleaved"});
  }
  config.norm_offset = 1.0f;
  config.qk_norm = QkNorm::kPerHead;
  config.attention_gate = true;
  check_gates(fields, config);
  const int interval = fields.get_int("full_attention_interval", 4);
  parse_recurrent_layers(
      fields,
      {.mixer = Mixer::kGatedDelta, .state = parse_state(fields), .types = {"linear_attention"}},
      [&](int layer) { return (layer + 1) % interval != 0; }, config);
  fields.pass_over({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"});
}

void parse_qwen3_next(const JsonFields& fields, ModelConfig& config) {
  parse_hybrid(fields, defaults_of(2, "intermediate_size"), config);
  parse_sparse_layers(fields,
                      {.num_experts = 512,
                       .num_per_token = 10,
                       .inner_key = "moe_intermediate_size",
                       .inner_size = 512},
                      /*renormalizes=*/true, config);
  set_shared_inner(fields.get_int("shared_expert_intermediate_size", 512), config);
}

void parse_qwen3_5(const JsonFields& fields, ModelConfig& config) {
  parse_hybrid(fields, defaults_of(4, "intermediate_size"), config);
}

void parse_qwen3_5_moe(const JsonFields& fields, ModelConfig& config) {
  parse_hybrid(fields, defaults_of(2, nullptr), config);
  fields.pass_over({"intermediate_size"});
  parse_experts(fields,
                {.num_experts = 256,
                 .num_per_token = 8,
                 .inner_key = "moe_intermediate_size",
                 .inner_size = 512},
                nullptr, config);
  if (!fields.get_bool("norm_topk_prob", true)) {
    fields.fail("norm_topk_prob", "is false, and only true is implemented");
  }
  set_shared_inner(fields.get_int("shared_expert_intermediate_size", 512), config);
}

constexpr TensorNames kNextNames = {
    .mixer = "linear_attn",
    .mixer_in = {"in_proj_qkvz"},
    .mixer_gates = {"in_proj_ba"},
    .mixer_by_key_head = true,
    .shared_in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
    .shared_out = "mlp.shared_expert.down_proj",
    .shared_gate = "mlp.shared_expert_gate"};

constexpr TensorNames kNames = {.mixer = kNextNames.mixer,
                                .mixer_in = {"in_proj_qkv", "in_proj_z"},
                                .mixer_gates = {"in_proj_b", "in_proj_a"},
                                .shared_in = kNextNames.shared_in,
                                .shared_out = kNextNames.shared_out,
                                .shared_gate = kNextNames.shared_gate};

}  // namespace

extern const Family kQwen3Next = {"Qwen3NextForCausalLM", "qwen3_next", kNextNames,
                                  parse_qwen3_next};
extern const Family kQwen3_5 = {"Qwen3_5ForCausalLM", "qwen3_5_text", kNames, parse_qwen3_5};
extern const Family kQwen3_5Moe = {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", kNames,
                                   parse_qwen3_5_moe};

}  // namespace specdec
