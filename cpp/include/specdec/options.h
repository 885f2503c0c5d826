// Options, each defined once: the table below a configuration gives every member's name, its
// allowed values and its help text. The checks in C++, the Python binding and its types, the
// command line and docs/options.md are generated from these tables.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "specdec/error.h"

namespace specdec {

// Numbers from lowest to highest. Neither NaN nor infinity is in any.
struct Range {
  double lowest = std::numeric_limits<double>::lowest();
  double highest = std::numeric_limits<double>::max();
  bool above_lowest = false;  // lowest itself is not in it

  constexpr bool contains(double value) const {
    return (above_lowest ? value > lowest : value >= lowest) && value <= highest;
  }
  constexpr bool has_lowest() const { return lowest > std::numeric_limits<double>::lowest(); }
  constexpr bool has_highest() const { return highest < std::numeric_limits<double>::max(); }
};

constexpr Range at_least(double lowest) { return {.lowest = lowest}; }
constexpr Range between(double lowest, double highest) {
  return {.lowest = lowest, .highest = highest};
}
constexpr Range above(double lowest, double highest = std::numeric_limits<double>::max()) {
  return {.lowest = lowest, .highest = highest, .above_lowest = true};
}

struct OptionText {
  const char* name;            // in Python and in errors; on the command line with dashes
  const char* help;            // a line, without a full stop
  const char* details = "";    // sentences that the documents add
  Range range = {};            // of a number, or of every number of a list
  const char* zero = nullptr;  // what 0, in Python None, stands for; null where 0 is a value
};

template <class Config, class Value>
struct Option {
  Value Config::* member;
  OptionText text;
};

template <class Config, class Value>
constexpr Option<Config, Value> option(Value Config::* member, const OptionText& text) {
  return {member, text};
}

template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

// The names of an enum's values for users; specialised beside each enum that is an option.
template <class Enum>
inline constexpr std::array<EnumName<Enum>, 0> kEnumNames = {};

template <class Enum>
  requires(!kEnumNames<Enum>.empty())
constexpr std::string_view name_of(Enum value) {
  for (const EnumName<Enum>& known : kEnumNames<Enum>) {
    if (known.value == value) return known.name;
  }
  return "";
}

// Nothing for a name that none of the values has.
template <class Enum>
constexpr std::optional<Enum> value_of(std::string_view name) {
  for (const EnumName<Enum>& known : kEnumNames<Enum>) {
    if (known.name == name) return known.value;
  }
  return {};
}

// The value of that name. Throws InvalidArgument that names the option and its choices.
template <class Enum>
Enum enum_value(const char* option, const std::string& name) {
  if (const std::optional<Enum> value = value_of<Enum>(name)) return *value;
  std::string known;
  for (const auto& [_, other] : kEnumNames<Enum>) {
    known += std::string(known.empty() ? "'" : ", '") + other + "'";
  }
  throw InvalidArgument(option, "'" + name + "' is not supported; use one of " + known);
}

// Calls function(option) for every option of a table.
template <class Table, class Function>
constexpr void for_each_option(const Table& table, const Function& function) {
  std::apply([&](const auto&... options) { (function(options), ...); }, table);
}

}  // namespace specdec
