// JSON files of a checkpoint, read with errors that name the file and the key.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace specdec {

// Throws CheckpointError unless `directory` is a checkpoint directory.
void require_directory(const std::string& directory);

// Whether a file or directory of that name exists. False where it cannot be checked, such as for a
// name longer than the system allows.
bool file_exists(const std::string& path);

using JsonEvent = nlohmann::json::parse_event_t;

// Parses `text`, part `what` of the file `path`. `on_event`, if any, receives every parse event.
// Throws CheckpointError when the text is not JSON, is nested too deep or has more values than any
// checkpoint needs.
nlohmann::json parse_json(
    const std::string& path, const char* what, std::string_view text,
    const std::function<void(JsonEvent, const nlohmann::json&)>& on_event = nullptr);

// `value` for a message: as in the file where it is short, else its beginning or its type.
std::string excerpt(const nlohmann::json& value);

// Throws CheckpointError when the file is missing, not JSON, or not a JSON object.
nlohmann::json read_json_object(const std::string& path);

// Typed access to an object of a JSON file. A null key counts as absent; a value of another type or
// out of range is a CheckpointError naming the key. Copies, and objects from get_object(), share
// the record of which keys were asked for.
class JsonFields {
 public:
  // `scope` precedes the key in messages: "rope_scaling.".
  JsonFields(std::string path, const nlohmann::json& object, std::string scope = "")
      : path_(std::move(path)), object_(object), scope_(std::move(scope)) {}

  // The same object, plus the keys of `others` that it lacks.
  JsonFields with_absent_from(const JsonFields& others) const;

  const std::string& path() const { return path_; }
  std::string name_of(std::string_view key) const { return scope_ + std::string(key); }

  bool has(const char* key) const { return find(key) != nullptr; }
  // Whether the key is present and null.
  bool is_null(const char* key) const;
  // Null when absent.
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json& object() const { return object_; }
  // Marks keys as asked for whose values change nothing here.
  void pass_over(std::initializer_list<std::string_view> keys) const;
  // Visits every key that was never asked for, here and in objects from get_object().
  void visit_unread(const std::function<void(const JsonFields& scope, const std::string& key,
                                             const nlohmann::json& value)>& visit) const;

  // Absent without a default: an error.
  int get_int(const char* key, std::optional<int> absent = {}, int minimum = 1) const;
  double get_number(const char* key, std::optional<double> absent = {}) const;
  double get_positive(const char* key, std::optional<double> absent = {}) const;
  bool get_bool(const char* key, bool absent) const;
  std::string get_string(const char* key, const std::string& absent) const;
  std::vector<std::string> get_strings(const char* key) const;  // empty when absent
  std::vector<double> get_numbers(const char* key) const;       // likewise
  JsonFields get_object(const char* key) const;

  [[noreturn]] void fail(const char* key, const std::string& message) const;

 private:
  [[noreturn]] void fail_type(const char* key, const char* expected) const;
  // The object that has `key`: this one or others_.
  const JsonFields& owner_of(std::string_view key) const;

  std::string path_;
  const nlohmann::json& object_;  // borrowed
  std::string scope_;
  std::shared_ptr<const JsonFields> others_ = nullptr;
  // Names that were asked for, and names of objects with a '.' appended.
  std::shared_ptr<std::set<std::string, std::less<>>> asked_ =
      std::make_shared<std::set<std::string, std::less<>>>();
};

}  // namespace specdec
