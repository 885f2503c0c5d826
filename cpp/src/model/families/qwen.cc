// Qwen2, Qwen3 and Qwen3 with experts.
#include <algorithm>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// 0 unless use_sliding_window is set, whatever sliding_window says.
int parse_window_in_use(const JsonFields& fields) {
  fields.pass_over({"sliding_window"});
  return fields.get_bool("use_sliding_window", false) ? parse_window(fields, 4096) : 0;
}

// layer_types says which layers have a window; without it, the layers from max_window_layers on
// have one.
void parse_windows(const JsonFields& fields, ModelConfig& config) {
  const int window = parse_window_in_use(fields);
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
  parse_windows(fields, config);
}

// Layers of dense MLPs are listed in mlp_only_layers, or are not each decoder_sparse_step-th.
void parse_sparse_layers(const JsonFields& fields, ModelConfig& config) {
  const int step = fields.get_int("decoder_sparse_step", 1);
  const int inner_size = fields.get_int("moe_intermediate_size", 768);
  const std::vector<double> dense = fields.get_numbers("mlp_only_layers");
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool is_listed = std::ranges::find(dense, double(layer)) != dense.end();
    if (is_listed || (layer + 1) % step != 0) continue;
    config.layers[layer].mlp = MlpKind::kExperts;
    config.layers[layer].inner_size = inner_size;
  }
}

void parse_qwen3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 32768, .num_kv_heads = 32, .head_dim = 128}, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  parse_windows(fields, config);
}

void parse_qwen3_moe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 32768, .num_kv_heads = 4}, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  set_windows(parse_window_in_use(fields), config);
  check_uniform_layer_types(fields, config);
  parse_experts(fields, 128, 8, config);
  config.renormalize_experts = fields.get_bool("norm_topk_prob", false);
  parse_sparse_layers(fields, config);
}

}  // namespace

const Family kQwen2 = {"Qwen2ForCausalLM", "qwen2", {}, parse_qwen2};
const Family kQwen3 = {"Qwen3ForCausalLM", "qwen3", {}, parse_qwen3};
const Family kQwen3Moe = {"Qwen3MoeForCausalLM", "qwen3_moe", {}, parse_qwen3_moe};

}  // namespace specdec
