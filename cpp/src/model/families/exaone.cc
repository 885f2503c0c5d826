// EXAONE 4: norms on the blocks' outputs, and of each head of q and k; layers of full attention are
// not rotated where others have a window.
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// Every how many layers one has full attention: a number, or letters such as "LLLG"; 0: all layers.
int parse_pattern(const JsonFields& fields) {
  constexpr const char* kKey = "sliding_window_pattern";
  const nlohmann::json* value = fields.find(kKey);
  if (value == nullptr || !value->is_string()) return fields.get_int(kKey, 4, 0);
  const std::string letters = fields.get_string(kKey, "");
  if (letters.find('G') + 1 != letters.size()) {
    fields.fail(kKey, "expected a number, or layers with a window, L, before one without, G");
  }
  return static_cast<int>(letters.size());
}

void parse_exaone4(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 2048, .num_kv_heads = 32, .norm_eps = 1e-5}, config);
  config.qk_norm = QkNorm::kPerHead;
  const int window = parse_window(fields, 4096);
  parse_windows_but_each(fields, window, window > 0 ? parse_pattern(fields) : 0, config);
  fields.pass_over({"sliding_window_pattern"});
  for (LayerSpec& layer : config.layers) {
    layer.norms = NormPlacement::kOutput;
    if (window > 0 && layer.sliding_window == 0) layer.rope = -1;
  }
}

}  // namespace

extern const Family kExaone4 = {"Exaone4ForCausalLM",
                                "exaone4",
                                {.attention_norm = {},
                                 .attention_output_norm = "post_attention_layernorm",
                                 .mlp_norm = {},
                                 .mlp_output_norm = "post_feedforward_layernorm"},
                                parse_exaone4};

}  // namespace specdec
