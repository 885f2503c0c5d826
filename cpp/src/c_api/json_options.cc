#include "c_api/json_options.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr size_t kMaxExcerpt = 80;

std::string excerpt(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMaxExcerpt ? text : text.substr(0, kMaxExcerpt) + "...";
}

[[noreturn]] void refuse(const std::string& name, const char* expected, const Json& value) {
  throw InvalidArgument(name, str_cat("must be ", expected, ", got ", excerpt(value)));
}

// `what` is the name of the argument.
Json parse_object(const char* what, std::string_view text) {
  if (text.empty()) return Json::object();
  const auto check = [what](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw InvalidArgument(what, str_cat("is nested deeper than ", kMaxDepth, " levels"));
    }
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text, check);
  } catch (const Json::exception& error) {
    std::string message = error.what();  // may quote broken UTF-8
    std::ranges::replace_if(message, [](char c) { return (c & 0x80) != 0; }, '?');
    throw InvalidArgument(what, "is not valid JSON: " + message);
  }
  if (parsed.is_null()) return Json::object();
  if (!parsed.is_object()) refuse(what, "a JSON object", parsed);
  return parsed;
}

// ---- a value of each type

// Sets `value`, or throws InvalidArgument that names `name`.
template <class Value>
void read_value(const std::string& name, const Json& json, Value& value);
template <class Value>
void read_value(const std::string& name, const Json& json, std::optional<Value>& value);
template <class Value>
void read_value(const std::string& name, const Json& json, std::vector<Value>& values);
void read_value(const std::string& name, const Json& json,
                std::vector<std::pair<int32_t, float>>& values);

template <class Integer>
Integer integer_of(const std::string& name, const Json& json) {
  if (!json.is_number_integer()) refuse(name, "an integer", json);
  const bool is_large = json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX;
  const bool fits = is_large ? std::in_range<Integer>(json.get<uint64_t>())
                             : std::in_range<Integer>(json.get<int64_t>());
  if (!fits) {
    throw InvalidArgument(
        name, str_cat("must be an integer in [", std::numeric_limits<Integer>::min(), ", ",
                      std::numeric_limits<Integer>::max(), "], got ", json.dump()));
  }
  return is_large ? static_cast<Integer>(json.get<uint64_t>())
                  : static_cast<Integer>(json.get<int64_t>());
}

template <class Value>
void read_value(const std::string& name, const Json& json, std::vector<Value>& values) {
  if (!json.is_array()) refuse(name, "a list", json);
  values.clear();
  for (const Json& entry : json) {
    const std::string entry_name = str_cat(name, "[", values.size(), "]");
    read_value(entry_name, entry, values.emplace_back());
  }
}

// An object from token ids to numbers, as in {"17": -2.5}.
void read_value(const std::string& name, const Json& json,
                std::vector<std::pair<int32_t, float>>& values) {
  if (!json.is_object()) refuse(name, "an object such as {\"17\": -2.5}", json);
  values.clear();
  for (const auto& [key, entry] : json.items()) {
    int32_t token = 0;
    const char* end = key.data() + key.size();
    if (const auto [at, error] = std::from_chars(key.data(), end, token);
        error != std::errc() || at != end) {
      throw InvalidArgument(name,
                            str_cat("has the key ", Json(key).dump(), ", expected a token id"));
    }
    float number = 0;
    read_value(str_cat(name, "[", token, "]"), entry, number);
    values.emplace_back(token, number);
  }
}

template <class Value>
void read_value(const std::string& name, const Json& json, std::optional<Value>& value) {
  read_value(name, json, value.emplace());
}

template <class Value>
void read_value(const std::string& name, const Json& json, Value& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (!json.is_boolean()) refuse(name, "true or false", json);
    value = json.get<bool>();
  } else if constexpr (std::is_enum_v<Value>) {
    if (!json.is_string()) refuse(name, "a string", json);
    value = enum_value<Value>(name.c_str(), json.get<std::string>());
  } else if constexpr (std::is_integral_v<Value>) {
    value = integer_of<Value>(name, json);
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (!json.is_number()) refuse(name, "a number", json);
    value = json.get<Value>();
  } else {
    static_assert(std::is_same_v<Value, std::string>);
    if (!json.is_string()) refuse(name, "a string", json);
    value = json.get<std::string>();
  }
}

// ---- objects

// The members of an object, each of which is asked for by name; the rest is refused.
class Members {
 public:
  Members(const Json& object, std::string scope) : object_(object), scope_(std::move(scope)) {}

  std::string name_of(const char* key) const { return scope_ + key; }

  // Null where the key is absent or null.
  const Json* find(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  template <class Value>
  void read(const char* key, Value& value) {
    if (const Json* json = find(key)) read_value(name_of(key), *json, value);
  }

  // Every option of a table; null sets one whose 0 has a meaning of its own to 0.
  template <class Config, class Table>
  void read_options(Config& config, const Table& table) {
    for_each_option(table, [&]<class Value>(const Option<Config, Value>& option) {
      const char* key = option.text.name;
      Value& value = config.*option.member;
      if (option.text.zero != nullptr && object_.contains(key) && object_.at(key).is_null()) {
        value = Value{};
      }
      read(key, value);
    });
  }

  void refuse_others() const {
    for (const auto& [key, _] : object_.items()) {
      if (known_.contains(key)) continue;
      std::string list;
      for (const std::string& name : known_) list += (list.empty() ? "" : ", ") + name;
      const std::string shown =
          key.size() <= kMaxExcerpt ? key : key.substr(0, kMaxExcerpt) + "...";
      throw InvalidArgument(
          scope_ + Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace),
          "is not an option here; known are " + list);
    }
  }

 private:
  const Json& object_;  // borrowed
  std::string scope_;   // before names in messages, such as "speculative_config."
  std::set<std::string, std::less<>> known_;
};

DrafterConfig drafter_of(Members& members) {
  DrafterConfig drafter;
  members.read_options(drafter, kDrafterOptions);
  members.read("suffix_corpus", drafter.suffix_corpus);
  if (members.find("method") == nullptr) {
    throw InvalidArgument(members.name_of("method"), "is missing: what drafts, such as \"ngram\"");
  }
  if (drafter.method == DraftMethod::kCustom) {
    throw InvalidArgument(members.name_of("method"),
                          "'custom_class' needs an object of C++ or Python; use another method");
  }
  const auto refuse_unread = [&](const char* key) {
    if (members.find(key) == nullptr || method_takes(drafter.method, key)) return;
    throw InvalidArgument(
        members.name_of(key),
        str_cat("changes nothing for method '", name_of(drafter.method), "': leave it out"));
  };
  for_each_option(kDrafterOptions, [&](const auto& option) { refuse_unread(option.text.name); });
  refuse_unread("suffix_corpus");
  return drafter;
}

std::vector<DrafterConfig> drafters_of(const Json& list, const std::string& name) {
  if (!list.is_array() || list.empty()) refuse(name, "a list of objects", list);
  std::vector<DrafterConfig> drafters;
  for (const Json& entry : list) {
    const std::string entry_name = str_cat(name, "[", drafters.size(), "]");
    if (!entry.is_object()) refuse(entry_name, "an object", entry);
    Members members(entry, entry_name + ".");
    drafters.push_back(drafter_of(members));
    members.refuse_others();
  }
  return drafters;
}

std::vector<BatchSizeRange> batch_size_ranges(const std::vector<std::vector<int>>& entries,
                                              const std::string& name) {
  std::vector<BatchSizeRange> ranges;
  for (const std::vector<int>& entry : entries) {
    if (entry.size() != 3) {
      throw InvalidArgument(name, "must be a list of [first, last, tokens]");
    }
    ranges.push_back({entry[0], entry[1], entry[2]});
  }
  return ranges;
}

SpeculativeConfig speculative_config_of(const Json& object) {
  if (!object.is_object()) refuse("speculative_config", "an object", object);
  Members members(object, "speculative_config.");
  SpeculativeConfig config;
  members.read_options(config, kSpeculativeOptions);
  members.read("speculative_token_tree", config.speculative_token_tree);
  std::vector<std::vector<int>> by_batch_size;
  constexpr const char* kBatchSizes = "num_speculative_tokens_per_batch_size";
  members.read(kBatchSizes, by_batch_size);
  config.num_speculative_tokens_per_batch_size =
      batch_size_ranges(by_batch_size, members.name_of(kBatchSizes));
  if (const Json* drafters = members.find("drafters")) {
    config.drafters = drafters_of(*drafters, members.name_of("drafters"));
  } else {
    config.drafters = {drafter_of(members)};
  }
  members.refuse_others();
  if (config.num_speculative_tokens == 0) {
    throw InvalidArgument(members.name_of("num_speculative_tokens"),
                          "must be at least 1: the longest draft, such as 8. To decode without "
                          "drafts leave speculative_config out");
  }
  return config;
}

}  // namespace

EngineConfig engine_config_of(std::string_view json) {
  const Json object = parse_object("options_json", json);
  Members members(object, "");
  EngineConfig config;
  members.read("model", config.model);
  if (config.model.empty()) {
    throw InvalidArgument("model", "is missing: the directory of a checkpoint");
  }
  members.read_options(config, kEngineOptions);
  if (const Json* overrides = members.find("hf_overrides")) {
    if (!overrides->is_object()) refuse("hf_overrides", "an object", *overrides);
    config.hf_overrides = overrides->dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  if (const Json* speculative = members.find("speculative_config")) {
    config.speculative = speculative_config_of(*speculative);
  }
  members.refuse_others();
  return config;
}

RequestArguments request_arguments_of(std::string_view json,
                                      const std::vector<int32_t>& eos_token_ids) {
  const Json object = parse_object("params_json", json);
  Members members(object, "");
  RequestArguments arguments;
  arguments.params.eos_token_ids = eos_token_ids;
  members.read_options(arguments.params, kSamplingOptions);
  members.read("cache_salt", arguments.options.cache_salt);
  members.read("priority", arguments.options.priority);
  members.refuse_others();
  return arguments;
}

}  // namespace specdec
