#include <pybind11/functional.h>

#include <string>
#include <utility>

#include "bindings.h"
#include "specdec/log.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

void set_python_log_sink(const py::object& callable) {
  if (callable.is_none()) {
    set_log_sink({});
    return;
  }
  // Held for good: the log may outlive the interpreter's last look at it, so it is never
  // decremented.
  py::handle sink = py::object(callable).release();
  set_log_sink([sink](LogLevel level, const std::string& message) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    try {
      sink(level_name(level), message);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("specdec_native log sink");
    }
  });
}

}  // namespace

void bind_log(py::module_& module) {
  module.def("set_log_sink", &set_python_log_sink, py::arg("sink"));
}

}  // namespace specdec::python
