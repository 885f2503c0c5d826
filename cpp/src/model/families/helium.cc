// Helium: Llama whose neighbours turn together.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_helium(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096,
                       .num_kv_heads = 20,
                       .head_dim = 128,
                       .norm_eps = 1e-8,
                       .rope_theta = 1e5},
                      config);
  config.rope_in_pairs = true;
  config.qkv_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
}

}  // namespace

extern const Family kHelium = {"HeliumForCausalLM", "helium", {}, parse_helium};

}  // namespace specdec
