// OLMo 2 and 3: Llama with norms on the blocks' outputs instead of their inputs, and over all heads
// of q and k. OLMoE: norms as Llama, and experts.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kOutputNorms = {.attention_norm = {},
                                      .attention_output_norm = "post_attention_layernorm",
                                      .mlp_norm = {},
                                      .mlp_output_norm = "post_feedforward_layernorm"};

void finish_olmo(const JsonFields& fields, NormPlacement norms, ModelConfig& config) {
  config.qk_norm = QkNorm::kAllHeads;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  for (LayerSpec& layer : config.layers) layer.norms = norms;
}

void parse_olmo2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048, .norm_eps = 1e-5}, config);
  finish_olmo(fields, NormPlacement::kOutput, config);
  check_uniform_layer_types(fields, config);
}

void parse_olmo3(const JsonFields& fields, ModelConfig& config) {
  parse_sizes(fields, {.max_position_embeddings = 2048, .norm_eps = 1e-5}, config);
  finish_olmo(fields, NormPlacement::kOutput, config);
  parse_windows_but_each(fields, parse_window(fields, 4096), 4, config);
  constexpr double kTheta = 5e5;
  check_theta_alone(fields, kTheta);
  parse_ropes_by_window(fields, kTheta, fields.get_positive("rope_theta", kTheta), config);
}

void parse_olmoe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 4096, .norm_eps = 1e-5}, config);
  finish_olmo(fields, NormPlacement::kInput, config);
  parse_experts(fields, {.num_experts = 64, .num_per_token = 8}, nullptr, config);
  config.renormalize_experts = fields.get_bool("norm_topk_prob", false);
}

}  // namespace

extern const Family kOlmo2 = {"Olmo2ForCausalLM", "olmo2", kOutputNorms, parse_olmo2};
extern const Family kOlmo3 = {"Olmo3ForCausalLM", "olmo3", kOutputNorms, parse_olmo3};
extern const Family kOlmoe = {"OlmoeForCausalLM", "olmoe", {}, parse_olmoe};

}  // namespace specdec
