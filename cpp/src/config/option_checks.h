// Checks that follow from an option's table.
#pragma once

#include <optional>
#include <type_traits>
#include <vector>

#include "specdec/options.h"

namespace specdec {

// Throws InvalidArgument with the option's name, its range and the given value.
void check_number(const OptionText& option, double value);

template <class Value>
void check_value(const OptionText& option, const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>) {
    check_number(option, static_cast<double>(value));
  }
}

template <class Value>
void check_value(const OptionText& option, const std::optional<Value>& value) {
  if (value.has_value()) check_value(option, *value);
}

template <class Value>
void check_value(const OptionText& option, const std::vector<Value>& values) {
  for (const Value& value : values) check_value(option, value);
}

// Checks every option of `config` by itself, in the table's order.
template <class Config, class Table>
void check_options(const Config& config, const Table& table) {
  for_each_option(table,
                  [&](const auto& option) { check_value(option.text, config.*option.member); });
}

}  // namespace specdec
