#include "model/config.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>

#include "core/str_cat.h"
#include "model/config_keys.h"
#include "model/config_quantization.h"
#include "model/config_wrapper.h"
#include "model/families/family.h"
#include "model/json_file.h"
#include "specdec/error.h"

namespace specdec {
namespace {

namespace fs = std::filesystem;

DType parse_dtype(const JsonFields& fields) {
  const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = fields.get_string(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == name_of(dtype)) return dtype;
  }
  fields.fail(key, str_cat("'", name, "' is not supported; known: float32, bfloat16, float16"));
}

constexpr std::string_view kHeadSuffix = "ForCausalLM";

// "LlamaModel": the same network saved without its LM head.
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
      for (const Family* family : families()) {
        if (name == family->architecture || name == family->other_architecture ||
            is_base_model_of(name, *family)) {
          return *family;
        }
      }
    }
  } else {
    asked = fields.get_string("model_type", "");
    for (const Family* family : families()) {
      if (asked == family->model_type) return *family;
    }
  }
  std::string known;
  for (const std::string& name : known_architectures()) {
    known += str_cat(known.empty() ? "" : ", ", name.substr(0, name.size() - kHeadSuffix.size()));
  }
  fields.fail("architectures", str_cat("'", asked, "' is not known; known are, each with ",
                                       kHeadSuffix, " behind: ", known));
}

// An integer or a list of integers; empty for an absent key.
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
    for (const Family* family : families()) list.emplace_back(family->architecture);
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
  json = text_part_of(path, std::move(json));
  return parse_model_config(JsonFields(path, json), directory);
}

ModelConfig parse_model_config(const JsonFields& fields, const std::string& directory) {
  const Family& family = find_family(fields);
  ModelConfig config;
  config.architecture = family.architecture;
  config.model_type = family.model_type;
  config.names = family.names;
  config.checkpoint_dtype = parse_dtype(fields);
  parse_quantization_config(fields, directory, config);
  config.vocab_size = fields.get_int("vocab_size");
  family.parse(fields, config);
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
    config.num_mtp_layers = std::max(config.num_mtp_layers, fields.get_int(key, 0, 0));
  }
  config.unknown_keys = check_unread(fields, config.architecture);
  config.eos_token_ids = load_eos_token_ids(directory);
  return config;
}

}  // namespace specdec
