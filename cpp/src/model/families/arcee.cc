// Arcee's AFM and Jais 2: Llama with plain MLPs of squared ReLU, Jais 2 with layer norms and
// biases.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kNames = {.mlp_in = {"mlp.up_proj"}};

void finish(const JsonFields& fields, bool has_biases, ModelConfig& config) {
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", has_biases);
  config.mlp_bias = fields.get_bool("mlp_bias", has_biases);
  for (LayerSpec& layer : config.layers) layer.mlp = MlpKind::kPlain;
}

void parse_arcee(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 4096, .norm_eps = 1e-5, .activation = "relu2"}, config);
  finish(fields, false, config);
}

void parse_jais2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 8192,
                       .norm_eps_key = "layer_norm_eps",
                       .norm_eps = 1e-5,
                       .activation = "relu2"},
                      config);
  config.norm_kind = NormKind::kLayer;
  finish(fields, true, config);
}

}  // namespace

extern const Family kArcee = {"ArceeForCausalLM", "arcee", kNames, parse_arcee};
extern const Family kJais2 = {"Jais2ForCausalLM", "jais2", kNames, parse_jais2};

}  // namespace specdec
