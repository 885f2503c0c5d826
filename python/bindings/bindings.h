// One bind_* a subject; each adds its classes and functions to the module. No logic lives here.
#pragma once

#include <pybind11/pybind11.h>

namespace specdec::python {

void bind_errors(pybind11::module_& module);
void bind_option_info(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_grammar(pybind11::module_& module);
void bind_ranks(pybind11::module_& module);
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

}  // namespace specdec::python
