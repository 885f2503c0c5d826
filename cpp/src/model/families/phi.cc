// Phi-3 and Phi-4: Llama with fused matrices and longrope.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_phi3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 4096, .norm_eps = 1e-5, .has_partial_rotary = true},
      config);
  set_windows(parse_window(fields, 0), config);
  check_uniform_layer_types(fields, config);
}

}  // namespace

extern const Family kPhi3 = {"Phi3ForCausalLM",
                             "phi3",
                             {.qkv = {"self_attn.qkv_proj"}, .mlp_in = {"mlp.gate_up_proj"}},
                             parse_phi3};

}  // namespace specdec
