#include "model/config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "core/str_cat.h"
#include "model/config_quantization.h"
#include "model/config_rope.h"
#include "model/json_file.h"
#include "specdec/error.h"

namespace specdec {
namespace {

namespace fs = std::filesystem;

// What transformers assumes where config.json is silent.
struct FamilyDefaults {
  int max_position_embeddings;
  int num_kv_heads;  // 0: as many as heads
  int head_dim;      // 0: hidden_size / num_heads
  double norm_eps;
  double rope_theta;
};

// Keys that change what is computed and that no family here implements.
constexpr std::array kUnimplementedKeys = {
    "attention_multiplier",
    "attn_logit_softcapping",
    "attn_temperature_tuning",
    "clip_qkv",
    "compression_config",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "no_rope_layer_interval",
    "no_rope_layers",
    "qk_layernorm",
    "residual_multiplier",
    "sliding_window_pattern",
    "use_qk_norm",
};

// Present, and not spelt out as off.
bool is_set(const JsonFields& fields, const char* key) {
  const nlohmann::json* value = fields.find(key);
  return value != nullptr && !(value->is_boolean() && !value->get<bool>());
}

void refuse(const JsonFields& fields, const char* key, const std::string& architecture) {
  if (is_set(fields, key)) {
    fields.fail(key, str_cat("is not implemented for ", architecture));
  }
}

Activation parse_activation(const JsonFields& fields, const char* key, const char* absent) {
  const std::string name = fields.get_string(key, absent);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  fields.fail(key, str_cat("'", name,
                           "' is not implemented; known: silu, relu, gelu, gelu_new, "
                           "gelu_pytorch_tanh"));
}

DType parse_dtype(const JsonFields& fields) {
  const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = fields.get_string(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == name_of(dtype)) return dtype;
  }
  fields.fail(key, str_cat("'", name, "' is not supported; known: float32, bfloat16, float16"));
}

// The loader compares it with the tensors; here it only must not take the memory.
int parse_num_layers(const JsonFields& fields) {
  constexpr int kMaxLayers = 1 << 16;
  const int num_layers = fields.get_int("num_hidden_layers");
  if (num_layers > kMaxLayers) {
    fields.fail("num_hidden_layers",
                str_cat("expected at most ", kMaxLayers, ", got ", num_layers));
  }
  return num_layers;
}

void parse_heads(const JsonFields& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  config.num_heads = fields.get_int("num_attention_heads");
  const bool kv_heads_null =
      fields.object().contains("num_key_value_heads") && !fields.has("num_key_value_heads");
  const int kv_heads_absent =
      kv_heads_null || defaults.num_kv_heads == 0 ? config.num_heads : defaults.num_kv_heads;
  config.num_kv_heads = fields.get_int("num_key_value_heads", kv_heads_absent);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail(
        "num_key_value_heads",
        str_cat(config.num_kv_heads, " does not divide num_attention_heads, ", config.num_heads));
  }
  if (!fields.has("head_dim") && defaults.head_dim == 0 &&
      config.hidden_size % config.num_heads != 0) {
    fields.fail("hidden_size", str_cat("num_attention_heads, ", config.num_heads,
                                       ", does not divide it and there is no head_dim"));
  }
  config.head_dim =
      fields.get_int("head_dim", defaults.head_dim != 0 ? defaults.head_dim
                                                        : config.hidden_size / config.num_heads);
}

// The parts every rotary family shares. Biases, windows and experts are the family's own.
void parse_rotary_family(const JsonFields& fields, const FamilyDefaults& defaults,
                         ModelConfig& config) {
  config.hidden_size = fields.get_int("hidden_size");
  config.intermediate_size = fields.get_int("intermediate_size");
  config.num_layers = parse_num_layers(fields);
  config.max_position_embeddings =
      fields.get_int("max_position_embeddings", defaults.max_position_embeddings);
  parse_heads(fields, defaults, config);
  config.norm_eps = static_cast<float>(fields.get_positive("rms_norm_eps", defaults.norm_eps));
  config.activation = parse_activation(fields, "hidden_act", "silu");
  config.tie_word_embeddings = fields.get_bool("tie_word_embeddings", false);
  config.sliding_window.assign(config.num_layers, 0);
  config.rope = parse_rope(fields, config.max_position_embeddings, defaults.rope_theta);
  const int rotary = static_cast<int>(config.head_dim * config.rope.partial_rotary_factor);
  if (rotary < 2 || rotary % 2 != 0) {
    fields.fail("head_dim", str_cat("rotary embedding turns ", rotary,
                                    " elements of a head, expected an even number"));
  }
  if (config.rope.kind == RopeKind::kDynamic && rotary == 2) {
    fields.fail("head_dim", "dynamic rope scaling needs more than 2 rotary elements");
  }
}

// layer_types where a family has the same attention in all layers: must say nothing else.
void check_uniform_layer_types(const JsonFields& fields, const ModelConfig& config) {
  const char* expected = config.sliding_window.front() > 0 ? "sliding_attention" : "full_attention";
  const std::vector<std::string> types = fields.get_strings("layer_types");
  if (!std::all_of(types.begin(), types.end(),
                   [&](const std::string& type) { return type == expected; })) {
    fields.fail("layer_types", str_cat("is not implemented for ", config.architecture,
                                       " unless every layer is ", expected));
  }
}

void parse_llama(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 2048,
                       .num_kv_heads = 0,
                       .head_dim = 0,
                       .norm_eps = 1e-6,
                       .rope_theta = 10000.0},
                      config);
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.mlp_bias = fields.get_bool("mlp_bias", false);
  refuse(fields, "sliding_window", config.architecture);
  check_uniform_layer_types(fields, config);
}

// Mistral and Mixtral: no biases, one window for all layers.
void finish_mistral(const JsonFields& fields, int window_if_absent, ModelConfig& config) {
  refuse(fields, "attention_bias", config.architecture);
  refuse(fields, "mlp_bias", config.architecture);
  const int absent = fields.object().contains("sliding_window") ? 0 : window_if_absent;
  config.sliding_window.assign(config.num_layers, fields.get_int("sliding_window", absent));
  check_uniform_layer_types(fields, config);
}

void parse_mistral(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096 * 32,
                       .num_kv_heads = 8,
                       .head_dim = 0,
                       .norm_eps = 1e-6,
                       .rope_theta = 10000.0},
                      config);
  finish_mistral(fields, 4096, config);
}

void parse_mixtral(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 4096 * 32,
                       .num_kv_heads = 8,
                       .head_dim = 0,
                       .norm_eps = 1e-5,
                       .rope_theta = 1e6},
                      config);
  finish_mistral(fields, 0, config);
  const char* experts_key = fields.has("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = fields.get_int(experts_key, 8);
  config.num_experts_per_token = fields.get_int("num_experts_per_tok", 2);
  if (config.num_experts_per_token > config.num_experts) {
    fields.fail("num_experts_per_tok", str_cat("more than ", experts_key));
  }
}

// Windows of Qwen2 and Qwen3: layer_types says which layers have one, else those from
// max_window_layers on.
void parse_qwen_windows(const JsonFields& fields, ModelConfig& config) {
  const bool use_window = fields.get_bool("use_sliding_window", false);
  const bool window_null =
      fields.object().contains("sliding_window") && !fields.has("sliding_window");
  const int window = use_window && !window_null ? fields.get_int("sliding_window", 4096) : 0;
  if (!fields.has("layer_types")) {
    const int first = fields.get_int("max_window_layers", 28, 0);
    for (int layer = first; layer < config.num_layers; ++layer) {
      config.sliding_window[layer] = window;
    }
    return;
  }
  const std::vector<std::string> types = fields.get_strings("layer_types");
  if (types.size() != static_cast<size_t>(config.num_layers)) {
    fields.fail("layer_types",
                str_cat("expected ", config.num_layers, " entries, found ", types.size()));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (types[layer] == "full_attention") continue;
    if (types[layer] != "sliding_attention") {
      fields.fail("layer_types", str_cat("'", types[layer],
                                         "' is not implemented; known: full_attention, "
                                         "sliding_attention"));
    }
    if (window == 0) {
      fields.fail("layer_types", str_cat("layer ", layer,
                                         " is sliding_attention but there is no sliding_window in "
                                         "use (use_sliding_window, sliding_window)"));
    }
    config.sliding_window[layer] = window;
  }
}

void parse_qwen2(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 32768,
                       .num_kv_heads = 32,
                       .head_dim = 0,
                       .norm_eps = 1e-6,
                       .rope_theta = 10000.0},
                      config);
  config.qkv_bias = true;
  refuse(fields, "mlp_bias", config.architecture);
  parse_qwen_windows(fields, config);
}

void parse_qwen3(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields,
                      {.max_position_embeddings = 32768,
                       .num_kv_heads = 32,
                       .head_dim = 128,
                       .norm_eps = 1e-6,
                       .rope_theta = 10000.0},
                      config);
  config.qk_norm = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  refuse(fields, "mlp_bias", config.architecture);
  parse_qwen_windows(fields, config);
}

void parse_opt(const JsonFields& fields, ModelConfig& config) {
  config.hidden_size = fields.get_int("hidden_size");
  config.intermediate_size = fields.get_int("ffn_dim");
  config.num_layers = parse_num_layers(fields);
  config.max_position_embeddings = fields.get_int("max_position_embeddings", 2048);
  config.num_heads = fields.get_int("num_attention_heads");
  if (config.hidden_size % config.num_heads != 0) {
    fields.fail("num_attention_heads",
                str_cat(config.num_heads, " does not divide hidden_size, ", config.hidden_size));
  }
  config.num_kv_heads = config.num_heads;
  config.head_dim = config.hidden_size / config.num_heads;
  config.tie_word_embeddings = fields.get_bool("tie_word_embeddings", true);
  config.norm_kind = NormKind::kLayer;
  config.norm_eps = 1e-5f;  // torch.nn.LayerNorm's, not configurable
  config.norm_after = !fields.get_bool("do_layer_norm_before", true);
  config.final_norm = !config.norm_after && !fields.get_bool("_remove_final_layer_norm", false);
  config.qkv_bias = config.out_bias = config.mlp_bias = fields.get_bool("enable_bias", true);
  config.activation = parse_activation(fields, "activation_function", "relu");
  config.gated_mlp = false;
  config.rope.kind = RopeKind::kNone;
  config.learned_positions = true;
  config.learned_position_offset = 2;
  config.embed_dim = fields.get_int("word_embed_proj_dim", config.hidden_size);
  if (config.embed_dim == config.hidden_size) config.embed_dim = 0;
  config.sliding_window.assign(config.num_layers, 0);
  if (!fields.get_bool("layer_norm_elementwise_affine", true)) {
    fields.fail("layer_norm_elementwise_affine", "layer norms without weights are not implemented");
  }
}

struct Family {
  std::string_view architecture;
  std::string_view model_type;
  void (*parse)(const JsonFields&, ModelConfig&);
};

constexpr std::array kFamilies = {
    Family{"LlamaForCausalLM", "llama", parse_llama},
    Family{"MistralForCausalLM", "mistral", parse_mistral},
    Family{"Qwen2ForCausalLM", "qwen2", parse_qwen2},
    Family{"Qwen3ForCausalLM", "qwen3", parse_qwen3},
    Family{"OPTForCausalLM", "opt", parse_opt},
    Family{"MixtralForCausalLM", "mixtral", parse_mixtral},
};

constexpr std::string_view kHeadSuffix = "ForCausalLM";

// "LlamaModel": the same network saved without its head.
bool is_base_model_of(std::string_view name, const Family& family) {
  std::string_view stem = family.architecture;
  stem.remove_suffix(kHeadSuffix.size());
  return name.starts_with(stem) && name.substr(stem.size()) == "Model";
}

const Family& find_family(const JsonFields& fields) {
  std::string asked;
  const std::vector<std::string> architectures = fields.get_strings("architectures");
  if (!architectures.empty()) {
    for (const std::string& name : architectures) {
      asked += str_cat(asked.empty() ? "" : ", ", name);
      for (const Family& family : kFamilies) {
        if (name == family.architecture || is_base_model_of(name, family)) return family;
      }
    }
  } else {
    asked = fields.get_string("model_type", "");
    for (const Family& family : kFamilies) {
      if (asked == family.model_type) return family;
    }
  }
  std::string known;
  for (const std::string& name : known_architectures()) {
    known += str_cat(known.empty() ? "" : ", ", name);
  }
  fields.fail("architectures", str_cat("'", asked, "' is not known; known: ", known));
}

// An integer, or a list of them; an absent key gives none.
std::vector<int32_t> parse_eos(const JsonFields& fields) {
  constexpr const char* kKey = "eos_token_id";
  const nlohmann::json* value = fields.find(kKey);
  if (value == nullptr) return {};
  std::vector<int32_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      fields.fail(kKey, "expected a token id or a list of token ids");
    }
    ids.push_back(id.get<int32_t>());
  };
  if (value->is_array()) {
    for (const nlohmann::json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

nlohmann::json parse_overrides(const std::string& text) {
  nlohmann::json overrides = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!overrides.is_object()) {
    throw InvalidArgument("hf_overrides", "must be a JSON object whose keys are config.json's");
  }
  return overrides;
}

}  // namespace

const std::vector<std::string>& known_architectures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Family& family : kFamilies) list.emplace_back(family.architecture);
    return list;
  }();
  return names;
}

std::vector<int32_t> load_eos_token_ids(const std::string& directory) {
  require_directory(directory);
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = (fs::path(directory) / name).string();
    if (!file_exists(path)) continue;
    const nlohmann::json json = read_json_object(path);
    std::vector<int32_t> ids = parse_eos(JsonFields(path, json));
    if (!ids.empty()) return ids;
  }
  return {};
}

ModelConfig load_model_config(const std::string& directory, const std::string& overrides) {
  require_directory(directory);
  const std::string path = (fs::path(directory) / "config.json").string();
  nlohmann::json json = read_json_object(path);
  if (!overrides.empty()) json.merge_patch(parse_overrides(overrides));
  const JsonFields fields(path, json);
  const Family& family = find_family(fields);
  ModelConfig config;
  config.architecture = family.architecture;
  config.model_type = family.model_type;
  config.checkpoint_dtype = parse_dtype(fields);
  parse_quantization_config(fields, config);
  config.vocab_size = fields.get_int("vocab_size");
  for (const char* key : kUnimplementedKeys) refuse(fields, key, config.architecture);
  family.parse(fields, config);
  config.eos_token_ids = load_eos_token_ids(directory);
  return config;
}

}  // namespace specdec
