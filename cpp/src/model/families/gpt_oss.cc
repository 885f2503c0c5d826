// gpt-oss: attention with sinks and, in every second layer, a window; experts with biases and a
// clamped SwiGLU.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_gpt_oss(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 131072,
                       .num_kv_heads = 8,
                       .head_dim = 64,
                       .norm_eps = 1e-5,
                       .rope_theta = 150000.0},
                      config);
  if (!fields.has("rope_scaling") && !fields.has("rope_parameters")) {
    config.ropes.front() = {.kind = RopeKind::kYarn,
                            .theta = config.ropes.front().theta,
                            .factor = 32.0,
                            .original_max_position_embeddings = 4096,
                            .truncate = false};
  }
  config.has_sinks = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", true);
  parse_windows_but_each(fields, parse_window(fields, 128), 2, config);
  if (config.activation != Activation::kSilu) fields.fail("hidden_act", "expected silu");
  config.activation = Activation::kClampedSwiglu;
  config.activation_constants = {
      .alpha = static_cast<float>(fields.get_positive("swiglu_alpha", 1.702)),
      .limit = static_cast<float>(fields.get_positive("swiglu_limit", 7.0))};
  config.expert_biases = true;
  parse_experts(fields, {.num_experts = 128, .num_per_token = 4}, nullptr, config);
  // Of old files, the same as other keys.
  fields.pass_over({"experts_per_token", "initial_context_length"});
}

}  // namespace

extern const Family kGptOss = {
    "GptOssForCausalLM",
    "gpt_oss",
    {.router = "mlp.router", .stacked_alternates = true, .stacked_transposed = true},
    parse_gpt_oss};

}  // namespace specdec
