// Cohere's Command R (Cohere) and Command R7B (Cohere 2): attention and MLP beside each other,
// behind one layer norm without bias; neighbours turn together; layers of full attention in Cohere
// 2 do not turn.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr TensorNames kNames = {.mlp_norm = "input_layernorm"};

void check_word(const JsonFields& fields, const char* key, const char* known) {
  const std::string word = fields.get_string(key, known);
  if (word != known) fields.fail(key, str_cat("'", word, "' is not implemented; known: ", known));
}

void parse_both(const JsonFields& fields, double theta, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 8192,
                       .norm_eps_key = "layer_norm_eps",
                       .norm_eps = 1e-5,
                       .rope_theta = theta,
                       .tie_word_embeddings = true},
                      config);
  config.norm_kind = NormKind::kLayer;
  config.norm_bias = false;
  config.rope_in_pairs = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.logits_scale = static_cast<float>(fields.get_positive("logit_scale", 0.0625));
  for (LayerSpec& layer : config.layers) layer.is_parallel = true;
  // What files of the hub say of all this.
  check_word(fields, "position_embedding_type", "rope_gptj");
  for (const char* key : {"use_parallel_block", "use_gated_activation", "use_embedding_sharing"}) {
    if (!fields.get_bool(key, true)) fields.fail(key, "is false, and only true is implemented");
  }
}

void parse_cohere(const JsonFields& fields, ModelConfig& config) {
  parse_both(fields, 5e5, config);
}

void parse_cohere2(const JsonFields& fields, ModelConfig& config) {
  parse_both(fields, 1e4, config);
  check_word(fields, "order_of_interleaved_layers", "local_attn_first");
  const int pattern = fields.get_int("layer_switch", 4);  // in old files
  parse_windows_but_each(fields, parse_window(fields, 4096),
                         fields.get_int("sliding_window_pattern", pattern), config);
  for (LayerSpec& layer : config.layers) {
    if (layer.sliding_window == 0) layer.rope = -1;
  }
}

}  // namespace

extern const Family kCohere = {"CohereForCausalLM", "cohere", kNames, parse_cohere};
extern const Family kCohere2 = {"Cohere2ForCausalLM", "cohere2", kNames, parse_cohere2};

}  // namespace specdec
