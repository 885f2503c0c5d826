// InternLM3: Llama with biases by two switches.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_internlm3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048}, config);
  config.qkv_bias = fields.get_bool("qkv_bias", false);
  config.out_bias = config.mlp_bias = fields.get_bool("bias", false);
}

}  // namespace

extern const Family kInternLm3 = {"InternLM3ForCausalLM", "internlm3", {}, parse_internlm3};

}  // namespace specdec
