// One bind_* a subject; each adds its classes and functions to the module. No logic lives here.
#pragma once

#include <pybind11/pybind11.h>

namespace specdec::python {

void bind_errors(pybind11::module_& module);
void bind_option_info(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_sampling_params(pybind11::module_& module);
void bind_speculative(pybind11::module_& module);
void bind_outputs(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_log(pybind11::module_& module);

// What an exception out of Python code says, without the traceback that pybind11 adds to it.
inline std::string message_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\n\nAt:\n"));
}

// Makes a default object and sets the attributes named by keyword; an unknown name is a TypeError.
template <class T>
T from_keywords(const char* type_name, const pybind11::kwargs& keywords) {
  T value;
  pybind11::object object = pybind11::cast(&value, pybind11::return_value_policy::reference);
  for (const auto& [name, item] : keywords) {
    if (!pybind11::hasattr(object, name)) {
      throw pybind11::type_error(std::string(type_name) + ": unknown argument '" +
                                 pybind11::cast<std::string>(name) + "'");
    }
    pybind11::setattr(object, name, item);
  }
  return value;
}

}  // namespace specdec::python
