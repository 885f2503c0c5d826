// StarCoder2: layer norms, plain MLPs, biases.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_starcoder2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096,
                       .num_kv_heads = 2,
                       .norm_eps_key = "norm_epsilon",
                       .norm_eps = 1e-5,
                       .activation = "gelu_pytorch_tanh",
                       .tie_word_embeddings = true},
                      config);
  config.norm_kind = NormKind::kLayer;
  config.qkv_bias = config.out_bias = config.mlp_bias = fields.get_bool("use_bias", true);
  set_windows(parse_window(fields, 0), config);
  for (LayerSpec& layer : config.layers) layer.mlp = MlpKind::kPlain;
}

}  // namespace

extern const Family kStarcoder2 = {"Starcoder2ForCausalLM",
                                   "starcoder2",
                                   {.mlp_in = {"mlp.c_fc"}, .mlp_out = "mlp.c_proj"},
                                   parse_starcoder2};

}  // namespace specdec
