#include "model/config_wrapper.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Json = nlohmann::json;

struct Wrapper {
  std::string_view architecture;
  std::string_view text_type;  // the model_type of its text part where config.json has none
};
constexpr auto kWrappers = std::to_array<Wrapper>({
    {"Gemma3ForConditionalGeneration", "gemma3_text"},
    {"Gemma3nForConditionalGeneration", "gemma3n_text"},
    {"Gemma4ForConditionalGeneration", "gemma4_text"},
    {"Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"},
    {"Mistral3ForConditionalGeneration", "mistral"},
    {"LlavaForConditionalGeneration", "llama"},
    {"LlavaNextForConditionalGeneration", "llama"},
    {"Qwen2VLForConditionalGeneration", "qwen2"},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2"},
    {"Qwen3VLForConditionalGeneration", "qwen3"},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_moe"},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5_text"},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"},
});

// Other names of text parts that compute what a family does for text.
struct TextType {
  std::string_view name;
  std::string_view family;
};
constexpr auto kTextTypes = std::to_array<TextType>({{"qwen2_vl_text", "qwen2"},
                                                     {"qwen2_vl", "qwen2"},
                                                     {"qwen2_5_vl_text", "qwen2"},
                                                     {"qwen2_5_vl", "qwen2"},
                                                     {"qwen3_vl_text", "qwen3"},
                                                     {"qwen3_vl_moe_text", "qwen3_moe"}});

// What transformers takes for sizes that a text part leaves out, as files of wrappers do.
struct Defaults {
  std::string_view text_type;
  std::string_view values;
};
constexpr auto kDefaults = std::to_array<Defaults>(
    {{"gemma3_text", R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                         "num_hidden_layers": 26, "num_attention_heads": 8})"},
     {"gemma3n_text", R"({"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384,
                          "num_hidden_layers": 35, "num_attention_heads": 8})"},
     {"gemma4_text", R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
                         "num_hidden_layers": 30, "num_attention_heads": 8})"},
     {"gemma4_unified_text", R"({"vocab_size": 262144, "hidden_size": 2304,
                                 "intermediate_size": 9216, "num_hidden_layers": 30,
                                 "num_attention_heads": 8})"},
     {"llama", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
                   "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
                   "max_position_embeddings": 2048})"},
     {"mistral", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                     "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
                     "num_key_value_heads": 8, "max_position_embeddings": 131072,
                     "sliding_window": 4096})"}});

// Keys that belong to the text part wherever they stand.
constexpr auto kShared = std::to_array<const char*>(
    {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings",
     "quantization_config", "transformers_version"});

const Wrapper* find_wrapper(const Json& whole) {
  const auto names = whole.find("architectures");
  if (names == whole.end() || !names->is_array()) return nullptr;
  for (const Json& name : *names) {
    const auto found = std::ranges::find_if(
        kWrappers, [&](const Wrapper& wrapper) { return name == wrapper.architecture; });
    if (found != kWrappers.end()) return found;
  }
  return nullptr;
}

std::string_view architecture_of(const std::string& path, const std::string& text_type) {
  const auto other = std::ranges::find(kTextTypes, text_type, &TextType::name);
  const std::string_view type = other != kTextTypes.end() ? other->family : text_type;
  const auto families_known = families();
  const auto family = std::ranges::find_if(
      families_known, [&](const Family* known) { return known->model_type == type; });
  if (family != families_known.end()) return (*family)->architecture;
  throw CheckpointError(
      path, "",
      str_cat("text_config.model_type: '", text_type, "' is not the type of a known family"));
}

// Positions in time, height and width are equal in text, so their rope is the usual one.
void use_text_positions(Json& text, const char* key) {
  const auto found = text.find(key);
  if (found == text.end() || !found->is_object()) return;
  found->erase("mrope_section");
  found->erase("mrope_interleaved");
  for (const char* kind : {"type", "rope_type"}) {
    const auto name = found->find(kind);
    if (name != found->end() && *name == "mrope") *name = "default";
  }
}

}  // namespace

Json text_part_of(const std::string& path, Json whole) {
  const Wrapper* wrapper = find_wrapper(whole);
  return wrapper == nullptr ? whole : text_part_of(path, whole, wrapper->text_type);
}

Json text_part_of(const std::string& path, const Json& whole, std::string_view text_type) {
  const auto nested = whole.find("text_config");
  Json text = nested != whole.end() && nested->is_object() ? *nested : whole;
  std::string type(text_type);
  if (nested != whole.end() && nested->is_object() &&
      text.value("model_type", Json()).is_string()) {
    type = text["model_type"].get<std::string>();
  }
  for (const char* key : kShared) {
    const auto found = whole.find(key);
    if (found == whole.end()) continue;
    // Whether the LM head is tied, the whole decides.
    const bool goes_first = std::string_view(key) == "tie_word_embeddings";
    if (!goes_first && text.contains(key) && !text[key].is_null()) continue;
    text[key] = *found;
  }
  // Wrappers of Gemma are tied unless the whole says otherwise, whatever the text part says.
  if (type.starts_with("gemma") && !whole.contains("tie_word_embeddings")) {
    text.erase("tie_word_embeddings");
  }
  const auto defaults = std::ranges::find(kDefaults, type, &Defaults::text_type);
  if (defaults != kDefaults.end()) {
    const Json values = Json::parse(defaults->values);
    for (const auto& [key, value] : values.items()) {
      if (!text.contains(key)) text[key] = value;
    }
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) use_text_positions(text, key);
  text["architectures"] = {architecture_of(path, type)};
  return text;
}

}  // namespace specdec
