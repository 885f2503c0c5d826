// SmolLM3: Llama with layers whose positions are not rotated.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// no_rope_layers says of each layer whether it is rotated; without it, each
// no_rope_layer_interval-th is not.
void parse_unrotated_layers(const JsonFields& fields, ModelConfig& config) {
  const std::vector<double> rotates = fields.get_numbers("no_rope_layers");
  const int interval = fields.get_int("no_rope_layer_interval", 4);
  if (!rotates.empty() && rotates.size() < config.layers.size()) {
    fields.fail("no_rope_layers",
                str_cat("expected ", config.num_layers, " entries, found ", rotates.size()));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool is_rotated = rotates.empty() ? (layer + 1) % interval != 0 : rotates[layer] != 0;
    if (!is_rotated) config.layers[layer].rope = -1;
  }
}

void parse_smollm3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 32768,
                       .num_kv_heads = 4,
                       .rope_theta = 2e6,
                       .tie_word_embeddings = true},
                      config);
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  parse_unrotated_layers(fields, config);
  const int window = parse_window_in_use(fields, 0);
  parse_windows(
      fields, window, [&](int layer) { return window > 0 && config.layers[layer].rope < 0; },
      config);
}

}  // namespace

extern const Family kSmolLm3 = {"SmolLM3ForCausalLM", "smollm3", {}, parse_smollm3};

}  // namespace specdec
