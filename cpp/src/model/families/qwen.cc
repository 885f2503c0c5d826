// Qwen2 and Qwen3, dense and with experts; what computes the same: MiMo and Mellum 2.
#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

constexpr int kWindow = 4096;

// Without layer_types, the layers from max_window_layers on have a window.
void parse_late_windows(const JsonFields& fields, ModelConfig& config) {
  const int window = parse_window_in_use(fields, kWindow);
  const int first = fields.get_int("max_window_layers", 28, 0);
  parse_windows(fields, window, [&](int layer) { return window > 0 && layer >= first; }, config);
}

void parse_qwen2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 32768, .num_kv_heads = 32}, config);
  config.qkv_bias = true;
  parse_late_windows(fields, config);
}

void parse_qwen2_moe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 32768, .num_kv_heads = 16}, config);
  config.qkv_bias = fields.get_bool("qkv_bias", true);
  const int window = parse_window_in_use(fields, kWindow);
  const int end = fields.get_int("max_window_layers", 28, 0);
  parse_windows(
      fields, window, [&](int layer) { return window > 0 && layer % 2 == 0 && layer < end; },
      config);
  parse_sparse_layers(fields,
                      {.num_experts = 60,
                       .num_per_token = 4,
                       .inner_key = "moe_intermediate_size",
                       .inner_size = 1408},
                      /*renormalizes=*/false, config);
  set_shared_inner(fields.get_int("shared_expert_intermediate_size", 5632), config);
}

void parse_qwen3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(
      fields, {.max_position_embeddings = 32768, .num_kv_heads = 32, .head_dim = 128}, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  parse_late_windows(fields, config);
}

void parse_qwen3_moe(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 32768, .num_kv_heads = 4}, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  set_windows(parse_window_in_use(fields, kWindow), config);
  check_uniform_layer_types(fields, config);
  parse_sparse_layers(fields,
                      {.num_experts = 128,
                       .num_per_token = 8,
                       .inner_key = "moe_intermediate_size",
                       .inner_size = 768},
                      /*renormalizes=*/false, config);
}

// Windows and ropes by layer; mlp_layer_types says which layers are dense.
void parse_mellum(const JsonFields& fields, ModelConfig& config) {
  parse_sizes(fields, {.max_position_embeddings = 131072, .num_kv_heads = 4, .head_dim = 128},
              config);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  parse_windows(fields, parse_window(fields, 1024), [](int) { return false; }, config);
  check_theta_alone(fields, 5e5);
  parse_ropes_by_window(fields, 5e5, 1e4, config);
  const std::vector<std::string> kinds = fields.get_strings("mlp_layer_types");
  if (!kinds.empty() && kinds.size() != config.layers.size()) {
    fields.fail("mlp_layer_types",
                str_cat("expected ", config.num_layers, " entries, found ", kinds.size()));
  }
  parse_experts(
      fields,
      {.num_experts = 64,
       .num_per_token = 8,
       .inner_key = "moe_intermediate_size",
       .inner_size = 896},
      [&](int layer) { return kinds.empty() || kinds[layer] == "sparse"; }, config);
  config.renormalize_experts = fields.get_bool("norm_topk_prob", true);
  fields.pass_over({"mtp_layer_types", "mtp_mlp_layer_types"});
}

void parse_mimo(const JsonFields& fields, ModelConfig& config) {
  parse_qwen2(fields, config);
  config.qkv_bias = fields.get_bool("attention_bias", true);
}

}  // namespace

extern const Family kQwen2 = {"Qwen2ForCausalLM", "qwen2", {}, parse_qwen2};
extern const Family kQwen2Moe = {
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    {.shared_in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
     .shared_out = "mlp.shared_expert.down_proj",
     .shared_gate = "mlp.shared_expert_gate"},
    parse_qwen2_moe};
extern const Family kMiMo = {"MiMoForCausalLM", "mimo", {}, parse_mimo};
extern const Family kMellum = {"MellumForCausalLM", "mellum", {}, parse_mellum};
extern const Family kQwen3 = {"Qwen3ForCausalLM", "qwen3", {}, parse_qwen3};
extern const Family kQwen3Moe = {"Qwen3MoeForCausalLM", "qwen3_moe", {}, parse_qwen3_moe};

}  // namespace specdec
