// OPT: learned positions, layer norms and plain MLPs.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_opt(const JsonFields& fields, ModelConfig& config) {
  config.hidden_size = fields.get_int("hidden_size");
  config.max_position_embeddings = fields.get_int("max_position_embeddings", 2048);
  const int heads = fields.get_int("num_attention_heads");
  if (config.hidden_size % heads != 0) {
    fields.fail("num_attention_heads",
                str_cat(heads, " does not divide hidden_size, ", config.hidden_size));
  }
  const bool norm_before = fields.get_bool("do_layer_norm_before", true);
  parse_layers(fields,
               {.heads = {heads, heads, config.hidden_size / heads},
                .norms = norm_before ? NormPlacement::kInput : NormPlacement::kResidual,
                .rope = -1,
                .mlp = MlpKind::kPlain,
                .inner_size = fields.get_int("ffn_dim")},
               config);
  config.tie_word_embeddings = fields.get_bool("tie_word_embeddings", true);
  config.norm_kind = NormKind::kLayer;
  config.norm_eps = 1e-5f;  // torch.nn.LayerNorm's, not configurable
  config.final_norm = !fields.get_bool("_remove_final_layer_norm", false) && norm_before;
  config.qkv_bias = config.out_bias = config.mlp_bias = fields.get_bool("enable_bias", true);
  config.activation = parse_activation(fields, "activation_function", "relu");
  config.learned_positions = true;
  config.learned_position_offset = 2;
  config.embed_dim = fields.get_int("word_embed_proj_dim", config.hidden_size);
  if (config.embed_dim == config.hidden_size) config.embed_dim = 0;
  if (!fields.get_bool("layer_norm_elementwise_affine", true)) {
    fields.fail("layer_norm_elementwise_affine", "layer norms without weights are not implemented");
  }
}

}  // namespace

extern const Family kOpt = {"OPTForCausalLM",
                            "opt",
                            {.embedding = "model.decoder.embed_tokens",
                             .positions = "model.decoder.embed_positions",
                             .project_in = "model.decoder.project_in",
                             .project_out = "model.decoder.project_out",
                             .final_norm = "model.decoder.final_layer_norm",
                             .layers = "model.decoder.layers.",
                             .attention_norm = "self_attn_layer_norm",
                             .attention_out = "self_attn.out_proj",
                             .mlp_norm = "final_layer_norm",
                             .mlp_in = {"fc1"},
                             .mlp_out = "fc2"},
                            parse_opt};

}  // namespace specdec
