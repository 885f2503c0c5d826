#include "model/families/fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "core/k_slices.h"
#include "core/str_cat.h"
#include "model/config_rope.h"
#include "model/rope.h"

namespace specdec {
namespace {

AttentionHeads parse_heads(const JsonFields& fields, const FamilyDefaults& defaults,
                           int hidden_size) {
  AttentionHeads heads = {.num_heads = fields.get_int("num_attention_heads")};
  const int kv_heads_absent = fields.is_null("num_key_value_heads") || defaults.num_kv_heads == 0
                                  ? heads.num_heads
                                  : defaults.num_kv_heads;
  heads.num_kv_heads = fields.get_int("num_key_value_heads", kv_heads_absent);
  check_kv_heads(fields, "num_key_value_heads", heads);
  const bool is_quotient = defaults.head_dim == 0 || fields.is_null("head_dim");
  if (!fields.has("head_dim") && is_quotient && hidden_size % heads.num_heads != 0) {
    fields.fail("hidden_size", str_cat("num_attention_heads, ", heads.num_heads,
                                       ", does not divide it and there is no head_dim"));
  }
  heads.head_dim =
      fields.get_int("head_dim", is_quotient ? hidden_size / heads.num_heads : defaults.head_dim);
  return heads;
}

}  // namespace

Activation parse_activation(const JsonFields& fields, const char* key, const char* absent) {
  const std::string name = fields.get_string(key, absent);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "relu2") return Activation::kReluSquared;
  fields.fail(key, str_cat("'", name,
                           "' is not implemented; known: silu, relu, relu2, gelu, gelu_new, "
                           "gelu_pytorch_tanh"));
}

void parse_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig& config) {
  // The loader compares this number with the tensors; the limit here only bounds memory.
  constexpr int kMaxLayers = 1 << 16;
  config.num_layers = fields.get_int("num_hidden_layers");
  if (config.num_layers > kMaxLayers) {
    fields.fail("num_hidden_layers",
                str_cat("expected at most ", kMaxLayers, ", got ", config.num_layers));
  }
  config.layers.assign(config.num_layers, layer);
  for (LayerSpec& spec : config.layers) {
    spec.attention_scale = static_cast<float>(1.0 / std::sqrt(double(spec.heads.head_dim)));
  }
}

void parse_sizes(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  config.hidden_size = fields.get_int("hidden_size");
  config.max_position_embeddings =
      fields.get_int("max_position_embeddings", defaults.max_position_embeddings);
  parse_layers(
      fields,
      {.heads = parse_heads(fields, defaults, config.hidden_size),
       .inner_size =
           defaults.inner_size_key != nullptr ? fields.get_int(defaults.inner_size_key) : 0},
      config);
  config.norm_eps =
      static_cast<float>(fields.get_positive(defaults.norm_eps_key, defaults.norm_eps));
  if (defaults.activation_key != nullptr) {
    config.activation = parse_activation(fields, defaults.activation_key, defaults.activation);
  }
  config.tie_word_embeddings = fields.get_bool("tie_word_embeddings", defaults.tie_word_embeddings);
}

void parse_rotary_family(const JsonFields& fields, const FamilyDefaults& defaults,
                         ModelConfig& config) {
  parse_sizes(fields, defaults, config);
  config.ropes = {parse_rope(fields, config.max_position_embeddings, defaults.rope_theta,
                             defaults.partial_rotary_factor)};
  check_rotary_dim(fields, config, defaults.has_partial_rotary);
}

float parse_soft_cap(const JsonFields& fields, const char* key, double absent) {
  if (fields.is_null(key) || (absent == 0.0 && !fields.has(key))) return 0.0f;
  return static_cast<float>(fields.get_positive(key, absent));
}

void parse_query_scalar(const JsonFields& fields, double absent, ModelConfig& config) {
  const double scalar = fields.get_positive("query_pre_attn_scalar", absent);
  for (LayerSpec& layer : config.layers) {
    layer.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  }
}

void check_kv_heads(const JsonFields& fields, const char* key, const AttentionHeads& heads) {
  if (heads.num_heads % heads.num_kv_heads == 0) return;
  fields.fail(
      key, str_cat(heads.num_kv_heads, " does not divide num_attention_heads, ", heads.num_heads));
}

void check_rotary_dim(const JsonFields& fields, const ModelConfig& config, bool has_partial) {
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    const RopeConfig& rope = config.ropes[i];
    const bool is_partial = rope.partial_rotary_factor != 1.0;
    if (!has_partial && is_partial && rope.kind != RopeKind::kProportional) {
      fields.fail("partial_rotary_factor",
                  str_cat("is ", rope.partial_rotary_factor, ", and only 1 is implemented for ",
                          config.architecture));
    }
    const int head_dim = rope_head_dim(config, static_cast<int>(i));
    if (head_dim == 0) continue;
    const int rotary = rotary_dim(rope, head_dim);
    if (rotary < 2 || rotary % 2 != 0) {
      fields.fail("head_dim", str_cat("rotary embedding turns ", rotary,
                                      " elements of a head, expected an even number"));
    }
    for (const std::vector<double>* factors : {&rope.short_factors, &rope.long_factors}) {
      if (!factors->empty() && factors->size() != static_cast<size_t>(rotary) / 2) {
        fields.fail("rope_scaling",
                    str_cat("longrope needs ", rotary / 2,
                            " factors, one for each two rotary elements, found ", factors->size()));
      }
    }
    if (rope.kind == RopeKind::kDynamic && rotary == 2) {
      fields.fail("head_dim", "dynamic rope scaling needs more than 2 rotary elements");
    }
  }
}

int parse_conv_width(const JsonFields& fields, const char* key, int absent) {
  const int width = fields.get_int(key, absent, 2);
  if (width > kMaxConvWidth) {
    fields.fail(key, str_cat(width, ", expected at most ", kMaxConvWidth));
  }
  return width;
}

void check_state_sizes(const JsonFields& fields, const char* key_dim_key, const StateShape& state) {
  if (state.key_dim % kNumSlices != 0) {
    fields.fail(key_dim_key, str_cat(state.key_dim, ", expected a multiple of ", kNumSlices));
  }
  // A row's keys and queries, values and gates of the output have as many elements at most.
  constexpr int64_t kMost = 1 << 24;
  if (state.key_size() > kMost || state.value_size() > kMost || state.matrix_size() > kMost * 16) {
    fields.fail(key_dim_key, "the states are too large");
  }
}

void parse_recurrent_layers(const JsonFields& fields, const RecurrentLayers& recurrent,
                            const std::function<bool(int)>& is_recurrent, ModelConfig& config) {
  const char* key = recurrent.types_key;
  const std::vector<std::string> types = fields.get_strings(key);
  if (fields.has(key) && types.size() != config.layers.size()) {
    fields.fail(key, str_cat("expected ", config.num_layers, " entries, found ", types.size()));
  }
  const auto is_listed = [&](const std::string& type) {
    if (std::ranges::find(recurrent.types, type) != recurrent.types.end()) return true;
    if (type == "full_attention" || type == "attention") return false;
    fields.fail(key, str_cat("'", type, "' is not implemented; known: ", *recurrent.types.begin(),
                             ", full_attention"));
  };
  for (int i = 0; i < config.num_layers; ++i) {
    if (!(types.empty() ? is_recurrent(i) : is_listed(types[i]))) continue;
    LayerSpec& layer = config.layers[i];
    layer.mixer = recurrent.mixer;
    layer.state = recurrent.state;
    layer.heads = {};
    layer.rope = -1;
    layer.attention_scale = 0.0f;
  }
  if (std::ranges::all_of(config.layers, &LayerSpec::is_recurrent)) {
    fields.fail(key, "no layer is of attention, and models need one");
  }
}

void parse_shared_kv(const JsonFields& fields, int absent, ModelConfig& config) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const int first = config.num_layers - fields.get_int(kKey, absent, 0);
  const auto is_full = [&](int layer) { return config.layers[layer].sliding_window == 0; };
  for (int i = std::max(first, 0); i < config.num_layers; ++i) {
    LayerSpec& layer = config.layers[i];
    int source = first - 1;
    while (source >= 0 && is_full(source) != is_full(i)) --source;
    if (source < 0) {
      fields.fail(kKey, str_cat("no layer before layer ", first, " has the attention of layer ", i,
                                ", which has no keys and values of its own"));
    }
    if (config.layers[source].heads != layer.heads) {
      fields.fail(kKey, str_cat("layer ", i, " reads the keys and values of layer ", source,
                                ", whose heads are of another shape"));
    }
    layer.kv_source = source;
  }
}

void parse_gemma_network(const JsonFields& fields, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) {
    layer.norms = NormPlacement::kInputAndOutput;
    layer.attention_scale = 1.0f;
  }
  config.embedding_scale = static_cast<float>(std::sqrt(double(config.hidden_size)));
  config.rounds_embedding_scale = true;
  config.qk_norm = QkNorm::kPerHead;
  config.v_norm = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
}

void parse_per_layer_embeddings(const JsonFields& fields, ModelConfig& config) {
  constexpr const char* kKey = "hidden_size_per_layer_input";
  config.per_layer_dim = fields.is_null(kKey) ? 0 : fields.get_int(kKey, 256, 0);
  if (config.per_layer_dim == 0) return fields.pass_over({"vocab_size_per_layer_input"});
  config.per_layer_vocab = fields.get_int("vocab_size_per_layer_input", 262144);
}

void check_theta_alone(const JsonFields& fields, double theta) {
  if (fields.has("rope_scaling") || fields.has("rope_parameters")) return;
  if (fields.get_positive("rope_theta", theta) != theta) {
    fields.fail("rope_theta", str_cat("is not ", theta,
                                      ", and without rope_parameters the family's own ropes are "
                                      "taken; give rope_parameters"));
  }
}

int parse_window(const JsonFields& fields, int absent) {
  return fields.is_null("sliding_window") ? 0 : fields.get_int("sliding_window", absent);
}

int parse_window_in_use(const JsonFields& fields, int absent) {
  fields.pass_over({"sliding_window"});
  return fields.get_bool("use_sliding_window", false) ? parse_window(fields, absent) : 0;
}

void set_windows(int window, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) layer.sliding_window = window;
}

void check_uniform_layer_types(const JsonFields& fields, const ModelConfig& config) {
  const char* expected =
      config.layers.front().sliding_window > 0 ? "sliding_attention" : "full_attention";
  const std::vector<std::string> types = fields.get_strings("layer_types");
  if (!std::all_of(types.begin(), types.end(),
                   [&](const std::string& type) { return type == expected; })) {
    fields.fail("layer_types", str_cat("is not implemented for ", config.architecture,
                                       " unless every layer is ", expected));
  }
}

namespace {

// Whether each layer is "sliding_attention", from layer_types; empty where config.json has none.
// The only other known kind is "full_attention".
std::vector<bool> parse_sliding_layers(const JsonFields& fields, const ModelConfig& config) {
  if (!fields.has("layer_types")) return {};
  const std::vector<std::string> types = fields.get_strings("layer_types");
  if (types.size() != static_cast<size_t>(config.num_layers)) {
    fields.fail("layer_types",
                str_cat("expected ", config.num_layers, " entries, found ", types.size()));
  }
  std::vector<bool> is_sliding;
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.fail("layer_types", str_cat("'", type,
                                         "' is not implemented; known: full_attention, "
                                         "sliding_attention"));
    }
    is_sliding.push_back(type == "sliding_attention");
  }
  return is_sliding;
}

}  // namespace

void parse_windows(const JsonFields& fields, int window, const std::function<bool(int)>& is_sliding,
                   ModelConfig& config) {
  const std::vector<bool> listed = parse_sliding_layers(fields, config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (listed.empty() ? !is_sliding(layer) : !listed[layer]) continue;
    if (window == 0) {
      fields.fail("sliding_window", str_cat("is none or not in use, but layer ", layer,
                                            " is one of sliding attention"));
    }
    config.layers[layer].sliding_window = window;
  }
}

void parse_windows_but_each(const JsonFields& fields, int window, int pattern,
                            ModelConfig& config) {
  parse_windows(
      fields, window, [&](int layer) { return pattern > 0 && (layer + 1) % pattern != 0; }, config);
}

void parse_ropes_by_window(const JsonFields& fields, double theta, double sliding_theta,
                           ModelConfig& config) {
  const int max_positions = config.max_position_embeddings;
  if (fields.has("rope_scaling")) {
    const JsonFields scaling = fields.get_object("rope_scaling");
    if (scaling.has("type") && !scaling.has("rope_type")) {
      scaling.fail("type", "is read as rope_type only; take that name");
    }
  }
  if (fields.has("rope_parameters") && !fields.has("rope_scaling") && !has_layer_ropes(fields)) {
    fields.fail("rope_parameters", "expected one for full_attention and one for sliding_attention");
  }
  if (has_layer_ropes(fields)) {
    config.ropes = {parse_layer_rope(fields, "full_attention", max_positions,
                                     fields.get_positive("rope_theta", theta)),
                    parse_layer_rope(fields, "sliding_attention", max_positions, sliding_theta)};
  } else {
    config.ropes = {parse_rope(fields, max_positions, theta), {.theta = sliding_theta}};
  }
  // The scaled rope decides how many positions there are.
  for (RopeConfig& rope : config.ropes) rope.adds_positions = false;
  for (LayerSpec& layer : config.layers) layer.rope = layer.sliding_window > 0 ? 1 : 0;
  check_rotary_dim(fields, config);
}

namespace {

std::optional<int> if_positive(int value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

void parse_experts(const JsonFields& fields, const ExpertDefaults& defaults,
                   const std::function<bool(int)>& has_experts, ModelConfig& config) {
  const char* experts_key = "num_experts";
  for (const char* key : {"num_local_experts", "n_routed_experts", "moe_num_experts"}) {
    if (fields.has(key)) experts_key = key;
  }
  config.num_experts = fields.get_int(experts_key, if_positive(defaults.num_experts));
  config.num_experts_per_token =
      fields.get_int(defaults.per_token_key, if_positive(defaults.num_per_token));
  if (config.num_experts_per_token > config.num_experts) {
    fields.fail(defaults.per_token_key, str_cat("more than ", experts_key));
  }
  const int inner_size = defaults.inner_key != nullptr
                             ? fields.get_int(defaults.inner_key, if_positive(defaults.inner_size))
                             : 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (has_experts && !has_experts(layer)) continue;
    LayerSpec& spec = config.layers[layer];
    spec.mlp = MlpKind::kExperts;
    if (inner_size > 0) spec.inner_size = inner_size;
  }
}

void parse_sparse_layers(const JsonFields& fields, const ExpertDefaults& defaults,
                         bool renormalizes, ModelConfig& config) {
  const int step = fields.get_int("decoder_sparse_step", 1);
  const std::vector<double> dense = fields.get_numbers("mlp_only_layers");
  const auto has_experts = [&](int layer) {
    return (layer + 1) % step == 0 && std::ranges::find(dense, double(layer)) == dense.end();
  };
  parse_experts(fields, defaults, has_experts, config);
  config.renormalize_experts = fields.get_bool("norm_topk_prob", renormalizes);
}

void parse_sigmoid_router(const JsonFields& fields, bool renormalizes, ModelConfig& config) {
  config.router_scores = RouterScores::kSigmoid;
  config.renormalize_experts = fields.get_bool("norm_topk_prob", renormalizes);
  config.expert_scale = static_cast<float>(fields.get_positive("routed_scaling_factor", 1.0));
  config.num_expert_groups = fields.get_int("n_group", 1);
  config.top_expert_groups = fields.get_int("topk_group", 1);
  const int group_size = config.num_experts / config.num_expert_groups;
  if (group_size * config.num_expert_groups != config.num_experts || group_size < 2) {
    fields.fail("n_group", str_cat(config.num_expert_groups, ", expected to divide ",
                                   config.num_experts, " experts into groups of two or more"));
  }
  if (config.num_expert_groups > kMaxExpertGroups) {
    fields.fail("n_group", str_cat("expected at most ", kMaxExpertGroups));
  }
  if (config.top_expert_groups > config.num_expert_groups ||
      config.num_experts_per_token > config.top_expert_groups * group_size) {
    fields.fail("topk_group", str_cat(config.top_expert_groups, ", expected at most n_group, ",
                                      config.num_expert_groups, ", and groups enough for ",
                                      config.num_experts_per_token, " experts"));
  }
}

void set_shared_inner(int inner_size, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) {
    if (layer.mlp == MlpKind::kExperts) layer.shared_inner_size = inner_size;
  }
}

}  // namespace specdec
