#include <type_traits>

#include "bindings.h"
#include "specdec/error.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

// A Python exception class of the module that derives from `base` and a built-in one.
template <class CppError>
void bind_error(py::module_& module, const char* name, const py::tuple& bases) {
  py::object type = py::reinterpret_steal<py::object>(PyErr_NewException(
      (std::string("specdec_native._core.") + name).c_str(), bases.ptr(), nullptr));
  if (!type) throw py::error_already_set();
  module.attr(name) = type;
  static PyObject* python_type = type.release().ptr();  // lives as long as the process
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const CppError& error) {
      const py::object raised = py::handle(python_type)(error.what());
      if constexpr (std::is_same_v<CppError, RankFailure>) {
        raised.attr("rank") = error.rank();
        raised.attr("operation") = error.operation();
      }
      PyErr_SetObject(python_type, raised.ptr());
    }
  });
}

}  // namespace

void bind_errors(py::module_& module) {
  // Translators are tried last registered first, so the base class comes first.
  bind_error<Error>(module, "Error", py::make_tuple(py::handle(PyExc_RuntimeError)));
  const py::object base = module.attr("Error");
  bind_error<InvalidArgument>(module, "InvalidArgument",
                              py::make_tuple(base, py::handle(PyExc_ValueError)));
  bind_error<CheckpointError>(module, "CheckpointError",
                              py::make_tuple(base, py::handle(PyExc_ValueError)));
  bind_error<OutOfMemory>(module, "OutOfMemory",
                          py::make_tuple(base, py::handle(PyExc_MemoryError)));
  bind_error<Unavailable>(module, "Unavailable", py::make_tuple(base));
  bind_error<EngineFailed>(module, "EngineFailed", py::make_tuple(base));
  bind_error<RankFailure>(module, "RankFailure", py::make_tuple(module.attr("EngineFailed")));
  bind_error<InternalError>(module, "InternalError", py::make_tuple(base));
}

}  // namespace specdec::python
