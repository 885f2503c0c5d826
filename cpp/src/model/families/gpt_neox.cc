// GPT-NeoX and Pythia: layer norms, plain MLPs beside attention, a part of each head rotated.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_gpt_neox(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 2048,
                       .norm_eps_key = "layer_norm_eps",
                       .norm_eps = 1e-5,
                       .rope_theta = fields.get_positive("rotary_emb_base", 10000.0),
                       .partial_rotary_factor = fields.get_positive("rotary_pct", 0.25),
                       .has_partial_rotary = true,
                       .activation = "gelu"},
                      config);
  const AttentionHeads& heads = config.layers.front().heads;
  if (heads.num_kv_heads != heads.num_heads || heads.q_size() != config.hidden_size) {
    fields.fail("num_attention_heads",
                str_cat("expected that many heads of q, k and v that add up to hidden_size, ",
                        config.hidden_size));
  }
  // Their names here are rotary_pct and rotary_emb_base.
  for (const char* key : {"partial_rotary_factor", "rope_theta"}) {
    if (fields.has(key)) fields.fail(key, "is implemented in rope_parameters only");
  }
  config.norm_kind = NormKind::kLayer;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", true);
  config.mlp_bias = true;
  const bool is_parallel = fields.get_bool("use_parallel_residual", true);
  for (LayerSpec& layer : config.layers) {
    layer.mlp = MlpKind::kPlain;
    layer.is_parallel = is_parallel;
  }
}

}  // namespace

extern const Family kGptNeox = {"GPTNeoXForCausalLM",
                                "gpt_neox",
                                {.prefix = "gpt_neox.",
                                 .embedding = "gpt_neox.embed_in",
                                 .final_norm = "gpt_neox.final_layer_norm",
                                 .lm_head = "embed_out",
                                 .layers = "gpt_neox.layers.",
                                 .qkv = {"attention.query_key_value"},
                                 .qkv_by_head = true,
                                 .attention_out = "attention.dense",
                                 .mlp_in = {"mlp.dense_h_to_4h"},
                                 .mlp_out = "mlp.dense_4h_to_h"},
                                parse_gpt_neox};

}  // namespace specdec
