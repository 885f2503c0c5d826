#include "model/json_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/str_cat.h"
#include "model/input_file.h"
#include "specdec/error.h"

namespace specdec {

namespace {

using Json = nlohmann::json;

// Far beyond any checkpoint, and small enough to bound the stack and memory that a file can take.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 4'000'000;
constexpr size_t kMaxFileBytes = 100'000'000;
constexpr size_t kMaxExcerpt = 80;

}  // namespace

void require_directory(const std::string& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (!std::filesystem::exists(status)) {
    throw CheckpointError(directory, "", "no such directory; expected a checkpoint directory");
  }
  if (!std::filesystem::is_directory(status)) {
    throw CheckpointError(directory, "",
                          "is not a directory; expected one with config.json and *.safetensors");
  }
}

bool file_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Json parse_json(const std::string& path, const char* what, std::string_view text,
                const std::function<void(JsonEvent, const Json&)>& on_event) {
  size_t num_values = 0;
  const auto check = [&](int depth, JsonEvent event, Json& parsed) {
    if (depth > kMaxDepth) {
      throw CheckpointError(path, "",
                            str_cat(what, " is nested deeper than ", kMaxDepth, " levels"));
    }
    if (++num_values > kMaxValues) {
      throw CheckpointError(path, "", str_cat(what, " has more than ", kMaxValues, " values"));
    }
    if (on_event != nullptr) on_event(event, parsed);
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    // The message quotes the unreadable text, and must be valid UTF-8.
    std::string message = error.what();
    std::ranges::replace_if(message, [](char c) { return (c & 0x80) != 0; }, '?');
    throw CheckpointError(path, "", str_cat(what, " is not valid JSON: ", message));
  }
}

std::string excerpt(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && !std::ranges::all_of(value, &Json::is_number)) return "a list";
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMaxExcerpt ? text : text.substr(0, kMaxExcerpt) + "...";
}

Json read_json_object(const std::string& path) {
  if (!file_exists(path)) throw CheckpointError(path, "", "the file is missing or cannot be read");
  const InputFile file(path);
  if (file.size() > kMaxFileBytes) {
    throw CheckpointError(path, "",
                          str_cat("has ", file.size(), " bytes, expected at most ", kMaxFileBytes));
  }
  std::string text(file.size(), '\0');
  file.read(0, text.size(), text.data());
  Json parsed = parse_json(path, "the file", text);
  if (!parsed.is_object()) throw CheckpointError(path, "", "expected a JSON object");
  return parsed;
}

JsonFields JsonFields::with_absent_from(const JsonFields& others) const {
  JsonFields both = *this;
  both.others_ = std::make_shared<JsonFields>(others);
  return both;
}

const JsonFields& JsonFields::owner_of(std::string_view key) const {
  return others_ == nullptr || object_.contains(std::string(key)) ? *this : *others_;
}

const Json* JsonFields::find(const char* key) const {
  const JsonFields& owner = owner_of(key);
  owner.pass_over({key});
  const auto found = owner.object_.find(key);
  return found == owner.object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::is_null(const char* key) const {
  return find(key) == nullptr && owner_of(key).object_.contains(std::string(key));
}

void JsonFields::pass_over(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    const JsonFields& owner = owner_of(key);
    owner.asked_->insert(owner.name_of(key));
  }
}

void JsonFields::visit_unread(
    const std::function<void(const JsonFields&, const std::string&, const Json&)>& visit) const {
  for (const auto& [key, value] : object_.items()) {
    const std::string name = name_of(key);
    if (!asked_->contains(name)) {
      visit(*this, key, value);
    } else if (value.is_object() && asked_->contains(name + ".")) {
      get_object(key.c_str()).visit_unread(visit);
    }
  }
}

int JsonFields::get_int(const char* key, std::optional<int> absent, int minimum) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!absent) fail(key, "missing");
    return *absent;
  }
  // Some files write 8192.0 for 8192.
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number == std::floor(number)) || number < minimum ||
      number > std::numeric_limits<int>::max()) {
    fail_type(key, str_cat("an integer of at least ", minimum).c_str());
  }
  return static_cast<int>(number);
}

double JsonFields::get_number(const char* key, std::optional<double> absent) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!absent) fail(key, "missing");
    return *absent;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail_type(key, "a number");
  return value->get<double>();
}

double JsonFields::get_positive(const char* key, std::optional<double> absent) const {
  const double value = get_number(key, absent);
  if (has(key) && value <= 0) fail_type(key, "a number above 0");
  return value;
}

bool JsonFields::get_bool(const char* key, bool absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) fail_type(key, "true or false");
  return value->get<bool>();
}

std::string JsonFields::get_string(const char* key, const std::string& absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_string()) fail_type(key, "a string");
  return value->get<std::string>();
}

std::vector<double> JsonFields::get_numbers(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) fail_type(key, "a list of numbers");
  std::vector<double> numbers;
  for (const Json& item : *value) {
    if (!item.is_number()) fail_type(key, "a list of numbers");
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

std::vector<std::string> JsonFields::get_strings(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> strings;
  if (!value->is_array()) fail_type(key, "a list of strings");
  for (const Json& element : *value) {
    if (!element.is_string()) fail_type(key, "a list of strings");
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

JsonFields JsonFields::get_object(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "missing");
  if (!value->is_object()) fail_type(key, "an object");
  const JsonFields& owner = owner_of(key);
  JsonFields inner(path_, *value, owner.name_of(key) + ".");
  inner.asked_ = owner.asked_;
  asked_->insert(inner.scope_);
  return inner;
}

void JsonFields::fail(const char* key, const std::string& message) const {
  throw CheckpointError(path_, "", str_cat(owner_of(key).scope_, key, ": ", message));
}

void JsonFields::fail_type(const char* key, const char* expected) const {
  fail(key, str_cat("expected ", expected, ", got ", excerpt(*find(key))));
}

}  // namespace specdec
