// Apertus: norms of each head, plain MLPs of xIELU, whose constants each layer has.
#include "core/str_cat.h"
#include "model/config_rope.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_apertus(const JsonFields& fields, ModelConfig& config) {
  const std::string activation = fields.get_string("hidden_act", "xielu");
  if (activation != "xielu") {
    fields.fail("hidden_act", str_cat("'", activation, "' is not implemented; known: xielu"));
  }
  constexpr double kTheta = 12e6;
  parse_sizes(fields,
              {.max_position_embeddings = 65536, .norm_eps = 1e-5, .activation_key = nullptr},
              config);
  config.activation = Activation::kXielu;
  config.ropes = {parse_rope(fields, config.max_position_embeddings, kTheta)};
  check_theta_alone(fields, kTheta);
  if (!fields.has("rope_scaling") && !fields.has("rope_parameters")) {
    config.ropes.front() = {.kind = RopeKind::kLlama3,
                            .theta = config.ropes.front().theta,
                            .factor = 8.0,
                            .original_max_position_embeddings = 8192};
  }
  check_rotary_dim(fields, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  for (LayerSpec& layer : config.layers) layer.mlp = MlpKind::kPlain;
}

}  // namespace

extern const Family kApertus = {"ApertusForCausalLM",
                                "apertus",
                                {.attention_norm = "attention_layernorm",
                                 .mlp_norm = "feedforward_layernorm",
                                 .mlp_in = {"mlp.up_proj"}},
                                parse_apertus};

}  // namespace specdec
