#include <pybind11/stl.h>

#include "bindings.h"
#include "specdec/checkpoint.h"
#include "specdec/device.h"

namespace py = pybind11;

namespace specdec::python {

void bind_device(py::module_& module) {
  py::class_<DeviceInfo>(module, "DeviceInfo")
      .def_readonly("name", &DeviceInfo::name)
      .def_readonly("model", &DeviceInfo::model)
      .def_readonly("memory_bytes", &DeviceInfo::memory_bytes)
      .def_readonly("num_threads", &DeviceInfo::num_threads)
      .def_readonly("isa", &DeviceInfo::isa)
      .def_readonly("unusable", &DeviceInfo::unusable);
  py::class_<BuildInfo>(module, "BuildInfo")
      .def_readonly("version", &BuildInfo::version)
      .def_readonly("compiler", &BuildInfo::compiler)
      .def_readonly("build_type", &BuildInfo::build_type)
      .def_readonly("has_cuda", &BuildInfo::has_cuda)
      .def_readonly("cuda_note", &BuildInfo::cuda_note)
      .def_readonly("has_emulated_device", &BuildInfo::has_emulated_device)
      .def_readonly("cpu_isas", &BuildInfo::cpu_isas);
  module.def("list_devices", &list_devices);
  module.def("gpu_problem", &gpu_problem);
  module.def("build_info", &build_info);
  module.def("read_bandwidth", &read_bandwidth, py::arg("num_bytes"), py::kw_only(),
             py::arg("num_threads") = 0, py::arg("seconds") = 0.2,
             py::call_guard<py::gil_scoped_release>());
  module.def("known_architectures", &known_architectures);
  module.def("load_eos_token_ids", &load_eos_token_ids, py::arg("directory"));
}

}  // namespace specdec::python
