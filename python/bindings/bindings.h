// One bind_* a subject; each adds its classes and functions to the module. No logic lives here.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <type_traits>

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
void bind_model_facts(pybind11::module_& module);
void bind_log(pybind11::module_& module);

// What `function` returns, with the GIL released while it runs. The lock is taken back in a plain
// call and not in a destructor: where the interpreter has ended meanwhile, taking it ends the
// thread by unwinding, which a destructor would turn into std::terminate. For the same reason the
// destructor of a result must not take the GIL.
template <class Function>
auto without_gil(const Function& function) {
  if constexpr (std::is_void_v<decltype(function())>) {
    without_gil([&] { return function(), 0; });
  } else {
    PyThreadState* thread = PyEval_SaveThread();
    std::exception_ptr error;
    decltype(function()) result{};
    try {
      result = function();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    PyEval_RestoreThread(thread);
    if (error) std::rethrow_exception(error);
    return result;
  }
}

// The message of an exception from Python code, without the traceback that pybind11 appends.
inline std::string message_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\n\nAt:\n"));
}

}  // namespace specdec::python
