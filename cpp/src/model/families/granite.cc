// Granite: Llama with multipliers; with experts, with an MLP beside them, with windows and
// sinks, and with layers of Mamba 2. HyperCLOVA X: the same with norms on outputs.
#include <algorithm>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

float multiplier(const JsonFields& fields, const char* key, double absent = 1.0) {
  return static_cast<float>(fields.get_positive(key, absent));
}

void set_attention_scale(float scale, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) layer.attention_scale = scale;
}

void parse_multipliers(const JsonFields& fields, ModelConfig& config) {
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.embedding_scale = multiplier(fields, "embedding_multiplier");
  config.residual_scale = multiplier(fields, "residual_multiplier");
  config.logits_scale = 1.0f / multiplier(fields, "logits_scaling");
}

void parse_any(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  parse_rotary_family(fields, defaults, config);
  parse_multipliers(fields, config);
  set_attention_scale(multiplier(fields, "attention_multiplier"), config);
}

constexpr FamilyDefaults kDefaults = {.max_position_embeddings = 2048};
constexpr FamilyDefaults kWindowDefaults = {.max_position_embeddings = 8192,
                                            .num_kv_heads = 4,
                                            .norm_eps = 1e-5,
                                            .tie_word_embeddings = true};

void parse_granite(const JsonFields& fields, ModelConfig& config) {
  parse_any(fields, kDefaults, config);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
}

void parse_all_experts(const JsonFields& fields, ModelConfig& config) {
  parse_experts(fields, {.num_experts = 8, .num_per_token = 2}, nullptr, config);
}

void parse_granite_moe(const JsonFields& fields, ModelConfig& config) {
  parse_any(fields, kDefaults, config);
  parse_all_experts(fields, config);
}

void parse_granite_moe_shared(const JsonFields& fields, ModelConfig& config) {
  parse_granite_moe(fields, config);
  set_shared_inner(fields.get_int("shared_intermediate_size", 0, 0), config);
}

// The base of each layer's rope: 0: it is not rotated. In the file of a family with windows.
void parse_layer_thetas(const JsonFields& fields, ModelConfig& config) {
  const std::vector<double> thetas = fields.get_numbers("layer_rope_theta");
  if (thetas.empty()) return;
  if (thetas.size() != config.layers.size()) {
    fields.fail("layer_rope_theta",
                str_cat("expected ", config.num_layers, " entries, found ", thetas.size()));
  }
  const RopeConfig common = config.ropes.front();
  config.ropes.clear();
  for (size_t layer = 0; layer < thetas.size(); ++layer) {
    if (thetas[layer] < 0.0) fields.fail("layer_rope_theta", "expected numbers from 0 on");
    config.layers[layer].rope = -1;
    if (thetas[layer] == 0.0) continue;
    auto found = std::ranges::find(config.ropes, thetas[layer], &RopeConfig::theta);
    if (found == config.ropes.end()) {
      found = config.ropes.insert(found, common);
      found->theta = thetas[layer];
    }
    config.layers[layer].rope = static_cast<int>(found - config.ropes.begin());
  }
}

void parse_windows_and_sinks(const JsonFields& fields, ModelConfig& config) {
  parse_windows(
      fields, parse_window(fields, 128), [](int layer) { return layer % 4 != 0; }, config);
  parse_layer_thetas(fields, config);
  config.has_sinks = true;
}

void parse_granite_swa(const JsonFields& fields, ModelConfig& config) {
  parse_any(fields, kWindowDefaults, config);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  parse_windows_and_sinks(fields, config);
}

void parse_granite_moe_swa(const JsonFields& fields, ModelConfig& config) {
  parse_granite_moe_shared(fields, config);
  parse_windows_and_sinks(fields, config);
}

// Steps of the recurrences are not limited: [0, infinity], as transformers writes it.
void check_step_limit(const JsonFields& fields) {
  constexpr const char* kKey = "time_step_limit";
  const nlohmann::json* limit = fields.find(kKey);
  if (limit == nullptr) return;
  const bool is_none = limit->is_array() && limit->size() == 2 && limit->at(0) == 0 &&
                       limit->at(1) == nlohmann::json{{"__float__", "Infinity"}};
  if (!is_none) fields.fail(kKey, "is not [0, infinity], and limits are not implemented");
}

StateShape parse_mamba_state(const JsonFields& fields, const ModelConfig& config) {
  const int heads = fields.get_int("mamba_n_heads", 128);
  const int64_t size = int64_t{fields.get_int("mamba_expand", 2)} * config.hidden_size;
  const nlohmann::json* head_dim = fields.find("mamba_d_head");
  const bool is_quotient = head_dim == nullptr || *head_dim == "auto";
  StateShape state = {
      .conv_width = parse_conv_width(fields, "mamba_d_conv", 4),
      .num_key_heads = fields.get_int("mamba_n_groups", 1),
      .num_heads = heads,
      .key_dim = fields.get_int("mamba_d_state", 256),
      .value_dim = is_quotient ? static_cast<int>(size / heads) : fields.get_int("mamba_d_head")};
  if (state.value_size() != size) {
    fields.fail("mamba_n_heads", str_cat(heads, " heads of ", state.value_dim,
                                         " are not mamba_expand * hidden_size, ", size));
  }
  if (heads % state.num_key_heads != 0) {
    fields.fail("mamba_n_groups",
                str_cat(state.num_key_heads, " does not divide mamba_n_heads, ", heads));
  }
  check_state_sizes(fields, "mamba_d_state", state);
  state.conv_channels = static_cast<int>(state.value_size() + 2 * state.key_size());
  return state;
}

// Layers of Mamba 2.
void parse_mamba(const JsonFields& fields, ModelConfig& config) {
  const char* types_key = fields.has("layer_types") ? "layer_types" : "layers_block_type";
  const std::vector<std::string> types = fields.get_strings(types_key);
  const auto is_attention = [](const std::string& type) {
    return type == "attention" || type == "full_attention";
  };
  fields.pass_over({"mamba_chunk_size", "time_step_min", "time_step_max"});
  if (types.size() == config.layers.size() && std::ranges::all_of(types, is_attention)) {
    return fields.pass_over({"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head",
                             "mamba_d_conv", "mamba_expand", "mamba_conv_bias", "mamba_proj_bias",
                             "time_step_limit"});
  }
  const StateShape state = parse_mamba_state(fields, config);
  parse_recurrent_layers(
      fields,
      {.mixer = Mixer::kMamba2,
       .state = state,
       .types = {"mamba", "linear_attention"},
       .types_key = types_key},
      [](int) { return true; }, config);
  config.mixer_norm_groups = state.num_key_heads;
  config.mixer_bias = fields.get_bool("mamba_proj_bias", false);
  config.conv_bias = !fields.is_null("mamba_conv_bias") && fields.get_bool("mamba_conv_bias", true);
  check_step_limit(fields);
  if (config.activation != Activation::kSilu) {
    fields.fail("hidden_act", "only silu is implemented, which the convolutions have, too");
  }
}

// Granite 4, with layers of Mamba 2. It may have only the MLP beside the experts.
void parse_granite_moe_hybrid(const JsonFields& fields, ModelConfig& config) {
  constexpr const char* kInner = "shared_intermediate_size";
  if (fields.get_int("num_local_experts", 8, 0) == 0) {
    FamilyDefaults defaults = kDefaults;
    defaults.inner_size_key = kInner;
    parse_any(fields, defaults, config);
    fields.pass_over({"intermediate_size", "num_experts_per_tok"});
    config.names.mlp_in = config.names.shared_in;
    config.names.mlp_out = config.names.shared_out;
  } else {
    parse_granite_moe(fields, config);
    set_shared_inner(fields.get_int(kInner, 1024), config);
  }
  const std::string norm = fields.get_string("normalization_function", "rmsnorm");
  if (norm != "rmsnorm") {
    fields.fail("normalization_function",
                str_cat("'", norm, "' is not implemented; known: rmsnorm"));
  }
  const std::string positions = fields.get_string("position_embedding_type", "nope");
  for (LayerSpec& layer : config.layers) layer.rope = positions == "rope" ? 0 : -1;
  parse_mamba(fields, config);
}

void parse_hyperclovax(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, kDefaults, config);
  parse_multipliers(fields, config);
  config.logits_scale = multiplier(fields, "logits_scaling");  // not a divisor here
  set_attention_scale(
      multiplier(fields, "attention_multiplier", config.layers.front().attention_scale), config);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  if (!fields.get_bool("use_post_norm", true)) return;
  for (LayerSpec& layer : config.layers) layer.norms = NormPlacement::kInputAndOutput;
}

constexpr TensorNames kExpertNames = {.router = "block_sparse_moe.router.layer",
                                      .stacked_experts = {"block_sparse_moe.input_linear.weight",
                                                          "block_sparse_moe.output_linear.weight"},
                                      .shared_in = {"shared_mlp.input_linear"},
                                      .shared_out = "shared_mlp.output_linear"};

constexpr TensorNames kHybridNames = [] {
  TensorNames names = kExpertNames;
  names.mixer = "mamba";
  return names;
}();

constexpr TensorNames kSwaExpertNames = {
    .router = "block_sparse_moe.router",
    .stacked_experts = {"block_sparse_moe.experts.gate_up_proj",
                        "block_sparse_moe.experts.down_proj"},
    .shared_in = kExpertNames.shared_in,
    .shared_out = kExpertNames.shared_out};

}  // namespace

extern const Family kGranite = {"GraniteForCausalLM", "granite", {}, parse_granite};
extern const Family kGraniteMoe = {"GraniteMoeForCausalLM", "granitemoe", kExpertNames,
                                   parse_granite_moe};
extern const Family kGraniteMoeShared = {"GraniteMoeSharedForCausalLM", "granitemoeshared",
                                         kExpertNames, parse_granite_moe_shared};
extern const Family kGraniteMoeHybrid = {"GraniteMoeHybridForCausalLM", "granitemoehybrid",
                                         kHybridNames, parse_granite_moe_hybrid};
extern const Family kGraniteSwa = {"GraniteSWAForCausalLM", "granite_swa", {}, parse_granite_swa};
extern const Family kGraniteMoeSwa = {"GraniteMoeSWAForCausalLM", "granitemoe_swa", kSwaExpertNames,
                                      parse_granite_moe_swa};
extern const Family kHyperClovaX = {
    "HyperCLOVAXForCausalLM",
    "hyperclovax",
    {.attention_output_norm = "post_norm1", .mlp_output_norm = "post_norm2"},
    parse_hyperclovax};

}  // namespace specdec
