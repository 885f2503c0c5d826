// StableLM: Llama with layer norms; a part of each head is rotated.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_stablelm(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096,
                       .num_kv_heads = 32,
                       .norm_eps_key = "layer_norm_eps",
                       .norm_eps = 1e-5,
                       .partial_rotary_factor = 0.25,
                       .has_partial_rotary = true},
                      config);
  config.norm_kind = NormKind::kLayer;
  config.qkv_bias = fields.get_bool("use_qkv_bias", false);
  if (!fields.get_bool("use_parallel_residual", false)) return;
  for (LayerSpec& layer : config.layers) layer.is_parallel = true;
  config.names.mlp_norm = config.names.attention_norm;  // both blocks read the same rows
}

}  // namespace

extern const Family kStableLm = {"StableLmForCausalLM", "stablelm", {}, parse_stablelm};

}  // namespace specdec
