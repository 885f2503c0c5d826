// GLM-4, with norms on inputs (Glm) and on outputs, too (Glm4): neighbours in the first half of a
// head turn together. GLM-4.5 (Glm4Moe), Solar Open and dots.llm1: experts with DeepSeek's router.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr FamilyDefaults kGlmDefaults = {.max_position_embeddings = 131072,
                                         .num_kv_heads = 2,
                                         .head_dim = 128,
                                         .norm_eps = 1.5625e-07,
                                         .partial_rotary_factor = 0.5,
                                         .has_partial_rotary = true};

void parse_glm(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, kGlmDefaults, config);
  config.rope_in_pairs = true;
  config.qkv_bias = fields.get_bool("attention_bias", true);
}

void parse_glm4(const JsonFields& fields, ModelConfig& config) {
  parse_glm(fields, config);
  for (LayerSpec& layer : config.layers) layer.norms = NormPlacement::kInputAndOutput;
}

// Layers of experts but for the first ones, with n_shared_experts beside them.
void parse_deepseek_experts(const JsonFields& fields, int num_dense, int num_shared,
                            const ExpertDefaults& defaults, bool renormalizes,
                            ModelConfig& config) {
  const int first = fields.get_int("first_k_dense_replace", num_dense, 0);
  parse_experts(fields, defaults, [&](int layer) { return layer >= first; }, config);
  parse_sigmoid_router(fields, renormalizes, config);
  set_shared_inner(fields.get_int("n_shared_experts", num_shared, 0) *
                       fields.get_int(defaults.inner_key, defaults.inner_size),
                   config);
}

constexpr ExpertDefaults kExpertDefaults = {.num_experts = 128,
                                            .num_per_token = 8,
                                            .inner_key = "moe_intermediate_size",
                                            .inner_size = 1408};

void parse_glm4_moe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 131072,
                       .num_kv_heads = 8,
                       .norm_eps = 1e-5,
                       .partial_rotary_factor = 0.5,
                       .has_partial_rotary = true},
                      config);
  config.qkv_bias = fields.get_bool("attention_bias", false);
  if (fields.get_bool("use_qk_norm", false)) config.qk_norm = QkNorm::kPerHead;
  parse_deepseek_experts(fields, 1, 1, kExpertDefaults, true, config);
}

void parse_solar_open(const JsonFields& fields, ModelConfig& config) {
  ExpertDefaults experts = kExpertDefaults;
  experts.inner_size = 1280;
  parse_rotary_family(fields,
                      {.max_position_embeddings = 131072,
                       .num_kv_heads = 8,
                       .head_dim = 128,
                       .inner_size_key = experts.inner_key,
                       .norm_eps = 1e-5,
                       .rope_theta = 1e6,
                       .has_partial_rotary = true},
                      config);
  config.qkv_bias = fields.get_bool("attention_bias", false);
  fields.pass_over({"intermediate_size"});  // all layers have experts
  parse_deepseek_experts(fields, 0, 1, experts, true, config);
}

void parse_dots1(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048, .num_kv_heads = 32}, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  const int window = parse_window(fields, 4096);
  const int first = fields.get_int("max_window_layers", 62, 0);
  parse_windows(fields, window, [&](int layer) { return window > 0 && layer >= first; }, config);
  parse_deepseek_experts(fields, 0, 0, kExpertDefaults, false, config);
}

constexpr TensorNames kRouterNames = {.selection_bias = "mlp.gate.e_score_correction_bias"};

}  // namespace

extern const Family kGlm = {"GlmForCausalLM", "glm", {.mlp_in = {"mlp.gate_up_proj"}}, parse_glm};
extern const Family kGlm4 = {"Glm4ForCausalLM",
                             "glm4",
                             {.attention_output_norm = "post_self_attn_layernorm",
                              .mlp_output_norm = "post_mlp_layernorm",
                              .mlp_in = {"mlp.gate_up_proj"}},
                             parse_glm4};
extern const Family kGlm4Moe = {"Glm4MoeForCausalLM", "glm4_moe", kRouterNames, parse_glm4_moe};
extern const Family kSolarOpen = {"SolarOpenForCausalLM", "solar_open", kRouterNames,
                                  parse_solar_open};
extern const Family kDots1 = {"Dots1ForCausalLM", "dots1", kRouterNames, parse_dots1};

}  // namespace specdec
