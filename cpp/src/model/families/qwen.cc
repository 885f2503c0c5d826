// Qwen2 and Qwen3.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// layer_types says which layers have a window, else those from max_window_layers on have one.
void parse_windows(const JsonFields& fields, ModelConfig& config) {
  const int window = fields.get_bool("use_sliding_window", false) ? parse_window(fields, 4096) : 0;
  const std::vector<bool> is_sliding = parse_sliding_layers(fields, config);
  const int first = is_sliding.empty() ? fields.get_int("max_window_layers", 28, 0) : 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (is_sliding.empty() ? layer < first : !is_sliding[layer]) continue;
    if (!is_sliding.empty() && window == 0) {
      fields.fail("layer_types", str_cat("layer ", layer,
                                         " is sliding_attention but there is no sliding_window in "
                                         "use (use_sliding_window, sliding_window)"));
    }
    config.layers[layer].sliding_window = window;
  }
}

void parse_qwen2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 32768, .num_kv_heads = 32}, config);
  config.qkv_bias = true;
  refuse(fields, "mlp_bias", config);
  parse_windows(fields, config);
}

void parse_qwen3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 32768, .num_kv_heads = 32, .head_dim = 128}, config);
  config.qk_norm = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  refuse(fields, "mlp_bias", config);
  parse_windows(fields, config);
}

}  // namespace

const Family kQwen2 = {"Qwen2ForCausalLM", "qwen2", {}, parse_qwen2};
const Family kQwen3 = {"Qwen3ForCausalLM", "qwen3", {}, parse_qwen3};

}  // namespace specdec
