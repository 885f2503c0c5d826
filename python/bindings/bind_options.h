// Binds the options of a configuration from its table, and the table itself as `Config.options`.
#pragma once

#include <pybind11/stl.h>

#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.h"
#include "specdec/error.h"
#include "specdec/options.h"

namespace specdec::python {

// A row of a table, for Python.
struct OptionInfo {
  std::string name;
  std::string type;  // as an annotation
  pybind11::object default_value;
  std::string help;
  std::string details;
  std::optional<double> lowest;
  std::optional<double> highest;
  bool above_lowest = false;
  std::optional<std::string> zero;
  std::vector<std::string> choices;
  int num_bits = 0;  // of an integer
};

// The annotation of a C++ type, such as "list[tuple[int, float]]".
template <class Value>
struct PythonType {
  static std::string name() {
    if (std::is_same_v<Value, bool>) return "bool";
    if (std::is_integral_v<Value>) return "int";
    return std::is_floating_point_v<Value> ? "float" : "str";
  }
};
template <class Value>
struct PythonType<std::optional<Value>> {
  static std::string name() { return PythonType<Value>::name() + " | None"; }
};
template <class Value>
struct PythonType<std::vector<Value>> {
  static std::string name() { return "list[" + PythonType<Value>::name() + "]"; }
};
template <class First, class Second>
struct PythonType<std::pair<First, Second>> {
  static std::string name() {
    return "tuple[" + PythonType<First>::name() + ", " + PythonType<Second>::name() + "]";
  }
};

template <class Config, class Value>
OptionInfo describe(const Option<Config, Value>& option) {
  const OptionText& text = option.text;
  OptionInfo info;
  info.name = text.name;
  info.type = PythonType<Value>::name();
  info.help = text.help;
  info.details = text.details;
  const Value value = Config{}.*option.member;
  if constexpr (std::is_enum_v<Value>) {
    info.default_value = pybind11::cast(name_of(value));
    for (const auto& [_, name] : kEnumNames<Value>) info.choices.emplace_back(name);
  } else {
    info.default_value = pybind11::cast(value);
  }
  info.above_lowest = text.range.above_lowest;
  if (text.range.has_lowest()) info.lowest = text.range.lowest;
  if (text.range.has_highest()) info.highest = text.range.highest;
  if (text.zero != nullptr) info.zero = text.zero;
  if constexpr (std::is_integral_v<Value>) info.num_bits = 8 * sizeof(Value);
  return info;
}

// Each option as an attribute, an enum by its names; all of them as the class attribute `options`;
// and a constructor that sets the attributes named by keyword.
template <class Config, class Table>
void def_options(pybind11::class_<Config>& type, const Table& table) {
  type.def(pybind11::init([](const pybind11::kwargs& keywords) {
    Config config;
    const pybind11::object object =
        pybind11::cast(&config, pybind11::return_value_policy::reference);
    for (const auto& [name, value] : keywords) {
      if (!pybind11::hasattr(object, name)) {
        throw pybind11::type_error("unknown argument '" + pybind11::cast<std::string>(name) + "'");
      }
      pybind11::setattr(object, name, value);
    }
    return config;
  }));
  pybind11::list rows;
  for_each_option(table, [&]<class Value>(const Option<Config, Value>& option) {
    rows.append(describe(option));
    if constexpr (std::is_enum_v<Value>) {
      type.def_property(
          option.text.name,
          [member = option.member](const Config& config) { return name_of(config.*member); },
          [option](Config& config, const std::string& name) {
            config.*option.member = enum_value<Value>(option.text.name, name);
          });
    } else {
      type.def_readwrite(option.text.name, option.member);
    }
  });
  type.attr("options") = pybind11::tuple(rows);
}

}  // namespace specdec::python
