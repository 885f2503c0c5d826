// Llama, Mistral and Mixtral: one network, with windows and with experts.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_llama(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048}, config);
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  check_uniform_layer_types(fields, config);
}

// Mistral and Mixtral: no biases, one window for all layers.
void finish_mistral(const JsonFields& fields, int window_if_absent, ModelConfig& config) {
  set_windows(parse_window(fields, window_if_absent), config);
  check_uniform_layer_types(fields, config);
}

void parse_mistral(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 4096 * 32, .num_kv_heads = 8}, config);
  finish_mistral(fields, 4096, config);
}

void parse_mixtral(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096 * 32,
                       .num_kv_heads = 8,
                       .norm_eps = 1e-5,
                       .rope_theta = 1e6},
                      config);
  finish_mistral(fields, 0, config);
  for (LayerSpec& layer : config.layers) layer.mlp = MlpKind::kExperts;
  parse_experts(fields, 8, 2, config);
}

}  // namespace

const Family kLlama = {"LlamaForCausalLM", "llama", {}, parse_llama};
const Family kMistral = {"MistralForCausalLM", "mistral", {}, parse_mistral};
const Family kMixtral = {"MixtralForCausalLM",
                         "mixtral",
                         {.router = "block_sparse_moe.gate",
                          .experts = "block_sparse_moe.experts",
                          .expert = {"w1", "w3", "w2"}},
                         parse_mixtral};

}  // namespace specdec
