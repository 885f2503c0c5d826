#include "c_api/json_facts.h"

#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>

#include "specdec/fields.h"

namespace specdec {
namespace {

using Json = nlohmann::json;

template <class Value>
Json to_json(const Value& value);

template <class Value>
Json to_json(const std::vector<Value>& values) {
  Json list = Json::array();
  for (const Value& value : values) list.push_back(to_json(value));
  return list;
}

template <class Value>
Json to_json(const Value& value) {
  if constexpr (std::is_same_v<decltype(kFields<Value>), const std::tuple<>>) {
    return value;
  } else {
    Json object = Json::object();
    for_each_field<Value>(
        [&](const char* name, auto member) { object[name] = to_json(value.*member); });
    return object;
  }
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string json_of(const ModelInfo& info, const std::vector<int32_t>& eos_token_ids) {
  Json object = to_json(info);
  object["eos_token_ids"] = eos_token_ids;
  return text_of(object);
}

std::string json_of(const EngineStats& stats) { return text_of(to_json(stats)); }

}  // namespace specdec
