// Nemotron and Minitron: layer norms whose weights are stored less one, plain MLPs of squared ReLU.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_nemotron(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096,
                       .norm_eps_key = "norm_eps",
                       .norm_eps = 1e-5,
                       .partial_rotary_factor = 0.5,
                       .has_partial_rotary = true,
                       .activation = "relu2"},
                      config);
  config.norm_kind = NormKind::kLayer;
  config.norm_offset = 1.0f;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  for (LayerSpec& layer : config.layers) layer.mlp = MlpKind::kPlain;
}

}  // namespace

extern const Family kNemotron = {
    "NemotronForCausalLM", "nemotron", {.mlp_in = {"mlp.up_proj"}}, parse_nemotron};

}  // namespace specdec
