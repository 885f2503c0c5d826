// Code World Model: Llama 3 with windows.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_cwm(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 131072,
                       .num_kv_heads = 8,
                       .head_dim = 128,
                       .norm_eps = 1e-5,
                       .rope_theta = 1e6},
                      config);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  check_theta_alone(fields, 1e6);
  if (!fields.has("rope_scaling") && !fields.has("rope_parameters")) {
    config.ropes.front() = {.kind = RopeKind::kLlama3,
                            .theta = config.ropes.front().theta,
                            .factor = 16.0,
                            .original_max_position_embeddings = 8192};
  }
  parse_windows(
      fields, parse_window(fields, 8192), [](int layer) { return layer % 4 != 0; }, config);
}

}  // namespace

extern const Family kCwm = {"CwmForCausalLM", "cwm", {}, parse_cwm};

}  // namespace specdec
