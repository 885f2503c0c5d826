// Seed-OSS: Llama with biases on q, k and v.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_seed_oss(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 524288, .num_kv_heads = 8, .head_dim = 128}, config);
  config.qkv_bias = fields.get_bool("attention_bias", true);
  config.out_bias = fields.get_bool("attention_out_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
}

}  // namespace

extern const Family kSeedOss = {"SeedOssForCausalLM", "seed_oss", {}, parse_seed_oss};

}  // namespace specdec
