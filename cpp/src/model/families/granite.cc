// Granite: Llama with multipliers.

#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_granite(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048}, config);
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  const auto multiplier = [&](const char* key) {
    return static_cast<float>(fields.get_positive(key, 1.0));
  };
  for (LayerSpec& layer : config.layers) layer.attention_scale = multiplier("attention_multiplier");
  config.embedding_scale = multiplier("embedding_multiplier");
  config.residual_scale = multiplier("residual_multiplier");
  config.logits_scale = 1.0f / multiplier("logits_scaling");
}

}  // namespace

const Family kGranite = {"GraniteForCausalLM", "granite", {}, parse_granite};

}  // namespace specdec
