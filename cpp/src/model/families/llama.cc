// Llama, Mistral, Ministral and Mixtral: one network, with windows, and with experts.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// Some model types are the same network with other defaults.
FamilyDefaults llama_defaults(const std::string& model_type) {
  if (model_type == "internlm3") {
    return {.max_position_embeddings = 32768, .num_kv_heads = 2, .head_dim = 128, .norm_eps = 1e-5};
  }
  if (model_type == "iquestcoder") {
    return {
        .max_position_embeddings = 131072, .num_kv_heads = 8, .head_dim = 128, .norm_eps = 1e-5};
  }
  return {.max_position_embeddings = 2048};
}

void parse_llama(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, llama_defaults(fields.get_string("model_type", "")), config);
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
  parse_experts(fields, {.num_experts = 8, .num_per_token = 2}, nullptr, config);
}

void parse_ministral(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 4096 * 32, .num_kv_heads = 8}, config);
  const int window = parse_window(fields, 4096);
  parse_windows(fields, window, [&](int) { return window > 0; }, config);
}

// Queries grow with the position.
void parse_ministral3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields,
      {.max_position_embeddings = 262144, .num_kv_heads = 8, .head_dim = 128, .norm_eps = 1e-5},
      config);
  RopeConfig& rope = config.ropes.front();
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (fields.has(key)) {
    const JsonFields scaling = fields.get_object(key);
    rope.query_beta = scaling.get_number("llama_4_scaling_beta", 0.0);
    scaling.pass_over({"max_position_embeddings"});
  } else {
    rope = {.kind = RopeKind::kYarn,
            .theta = 1e6,
            .factor = 16.0,
            .original_max_position_embeddings = 16384,
            .mscale = 1.0,
            .mscale_all_dim = 1.0,
            .query_beta = 0.1};
  }
  finish_mistral(fields, 0, config);
}

}  // namespace

extern const Family kLlama = {"LlamaForCausalLM", "llama", {}, parse_llama};
extern const Family kMistral = {"MistralForCausalLM", "mistral", {}, parse_mistral};
extern const Family kMinistral = {"MinistralForCausalLM", "ministral", {}, parse_ministral};
extern const Family kMinistral3 = {"Ministral3ForCausalLM", "ministral3", {}, parse_ministral3};
extern const Family kMixtral = {"MixtralForCausalLM",
                                "mixtral",
                                {.router = "block_sparse_moe.gate",
                                 .experts = "block_sparse_moe.experts",
                                 .expert = {"w1", "w3", "w2"}},
                                parse_mixtral};

}  // namespace specdec
