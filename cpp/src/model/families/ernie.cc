// ERNIE 4.5, dense and with experts: neighbours turn together.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_ernie(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  parse_rotary_family(fields, defaults, config);
  config.rope_in_pairs = true;
  config.qkv_bias = config.out_bias = config.mlp_bias = fields.get_bool("use_bias", false);
}

void parse_ernie4_5(const JsonFields& fields, ModelConfig& config) {
  parse_ernie(fields,
              {.max_position_embeddings = 131072,
               .num_kv_heads = 2,
               .head_dim = 128,
               .norm_eps = 1e-5,
               .rope_theta = 5e5,
               .tie_word_embeddings = true},
              config);
}

void parse_ernie4_5_moe(const JsonFields& fields, ModelConfig& config) {
  parse_ernie(fields,
              {.max_position_embeddings = 131072,
               .num_kv_heads = 4,
               .norm_eps = 1e-5,
               .rope_theta = 5e5,
               .tie_word_embeddings = true},
              config);
  if (config.mlp_bias) fields.fail("use_bias", "is not implemented for experts");
  const int first = fields.get_int("moe_layer_start_index", 1, 0);
  const int last = static_cast<int>(fields.get_number("moe_layer_end_index", -1));
  const int interval = fields.get_int("moe_layer_interval", 1);
  const auto has_experts = [&](int layer) {
    return (layer + 1) % interval == 0 && layer >= first && (last == -1 || layer <= last);
  };
  constexpr const char* kInner = "moe_intermediate_size";
  parse_experts(
      fields,
      {.num_experts = 64,
       .per_token_key = fields.has("num_experts_per_tok") ? "num_experts_per_tok" : "moe_k",
       .num_per_token = 6,
       .inner_key = kInner,
       .inner_size = 1536},
      has_experts, config);
  set_shared_inner(fields.get_int("moe_num_shared_experts", 2, 0) * fields.get_int(kInner, 1536),
                   config);
  fields.pass_over({"moe_norm_min"});  // a sum of probabilities is never as small
}

}  // namespace

extern const Family kErnie4_5 = {
    "Ernie4_5ForCausalLM", "ernie4_5", {}, parse_ernie4_5, "Ernie4_5_ForCausalLM"};
extern const Family kErnie4_5Moe = {"Ernie4_5_MoeForCausalLM",
                                    "ernie4_5_moe",
                                    {.selection_bias = "mlp.moe_statics.e_score_correction_bias"},
                                    parse_ernie4_5_moe};

}  // namespace specdec
