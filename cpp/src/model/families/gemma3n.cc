// Gemma 3n (text): several residual streams, embeddings of each layer, a low-rank block beside
// attention, sparse gates in some layers; the last layers read the keys and values of earlier ones.
#include <cmath>
#include <numbers>
#include <vector>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// The x below which a normally distributed value lies with this probability.
double normal_quantile(double probability) {
  double low = -40.0, high = 40.0;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    const double below = std::erfc(-middle / std::numbers::sqrt2) / 2;
    (below < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

// intermediate_size: one number, or one for each layer.
void parse_inner_sizes(const JsonFields& fields, ModelConfig& config) {
  constexpr const char* kKey = "intermediate_size";
  const nlohmann::json* value = fields.find(kKey);
  if (value == nullptr || !value->is_array()) {
    const int size = fields.get_int(kKey, 16384);
    for (LayerSpec& layer : config.layers) layer.inner_size = size;
    return;
  }
  const std::vector<double> sizes = fields.get_numbers(kKey);
  if (sizes.size() != config.layers.size()) {
    fields.fail(kKey, str_cat("expected ", config.num_layers, " entries, found ", sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<int>(sizes[i]);
    if (size < 1 || size != sizes[i]) fields.fail(kKey, "expected numbers of 1 and more");
    config.layers[i].inner_size = size;
  }
}

// activation_sparsity_pattern: the part of each layer's gates that becomes 0.
void parse_sparsity(const JsonFields& fields, ModelConfig& config) {
  constexpr const char* kKey = "activation_sparsity_pattern";
  std::vector<double> pattern = fields.get_numbers(kKey);
  if (!fields.has(kKey) && config.num_layers > 10) pattern.assign(10, 0.95);
  if (fields.has(kKey) && pattern.size() != config.layers.size()) {
    fields.fail(kKey, str_cat("expected ", config.num_layers, " entries, found ", pattern.size()));
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] < 0.0 || pattern[i] >= 1.0)
      fields.fail(kKey, "expected numbers from 0 to below 1");
    if (pattern[i] == 0.0) continue;
    config.layers[i].gate_deviations = static_cast<float>(normal_quantile(pattern[i]));
  }
}

void parse_streams(const JsonFields& fields, ModelConfig& config) {
  config.num_streams = fields.get_int("altup_num_inputs", 4, 2);
  config.active_stream = fields.get_int("altup_active_idx", 0, 0);
  config.scales_corrected = fields.get_bool("altup_correct_scale", true);
  config.laurel_rank = fields.get_int("laurel_rank", 64);
  if (config.num_streams > kMaxStreams) {
    fields.fail("altup_num_inputs", str_cat("expected at most ", kMaxStreams));
  }
  if (config.active_stream >= config.num_streams) {
    fields.fail("altup_active_idx", "expected less than altup_num_inputs");
  }
  fields.pass_over({"altup_coef_clip"});  // of training
}

void parse_gemma3n(const JsonFields& fields, ModelConfig& config) {
  parse_sizes(fields,
              {.max_position_embeddings = 32768,
               .num_kv_heads = 2,
               .head_dim = 256,
               .inner_size_key = nullptr,
               .activation_key = "hidden_activation",
               .activation = "gelu_pytorch_tanh",
               .tie_word_embeddings = true},
              config);
  parse_inner_sizes(fields, config);
  parse_gemma_network(fields, config);
  config.logits_soft_cap = parse_soft_cap(fields, "final_logit_softcapping", 30.0);
  parse_windows_but_each(fields, parse_window(fields, 512), 5, config);
  parse_ropes_by_window(fields, 1e6, fields.get_positive("rope_local_base_freq", 10000.0), config);
  parse_shared_kv(fields, 15, config);
  parse_per_layer_embeddings(fields, config);
  if (config.per_layer_dim == 0) {
    fields.fail("hidden_size_per_layer_input",
                "is none, and Gemma 3n is implemented with them only");
  }
  parse_sparsity(fields, config);
  parse_streams(fields, config);
}

}  // namespace

extern const Family kGemma3n = {"Gemma3nForCausalLM",
                                "gemma3n_text",
                                {.attention_output_norm = "post_attention_layernorm",
                                 .mlp_norm = "pre_feedforward_layernorm",
                                 .mlp_output_norm = "post_feedforward_layernorm"},
                                parse_gemma3n};

}  // namespace specdec
