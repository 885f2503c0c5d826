// OLMo 2: Llama with norms on the blocks' outputs instead of their inputs, and over all heads of q
// and k.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_olmo2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048, .norm_eps = 1e-5}, config);
  config.qk_norm = QkNorm::kAllHeads;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  for (LayerSpec& layer : config.layers) layer.norms = NormPlacement::kOutput;
  check_uniform_layer_types(fields, config);
}

}  // namespace

const Family kOlmo2 = {"Olmo2ForCausalLM",
                       "olmo2",
                       {.attention_norm = {},
                        .attention_output_norm = "post_attention_layernorm",
                        .mlp_norm = {},
                        .mlp_output_norm = "post_feedforward_layernorm"},
                       parse_olmo2};

}  // namespace specdec
