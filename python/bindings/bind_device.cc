#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "bindings.h"
#include "specdec/checkpoint.h"
#include "specdec/device.h"
#include "specdec/draft_probe.h"
#include "specdec/tapped_states.h"

namespace py = pybind11;

namespace specdec::python {

using Tokens = std::vector<int32_t>;

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
  module.def("known_architectures", &known_architectures);
  module.def(
      "tapped_states",
      [](const EngineConfig& config, const Tokens& tokens, const std::vector<int>& layer_inputs,
         bool final_hidden) {
        return without_gil(
            [&] { return tapped_states(config, tokens, layer_inputs, final_hidden); });
      },
      py::arg("config"), py::arg("tokens"), py::arg("layer_inputs"), py::arg("final_hidden"));
  module.def(
      "head_logits",
      [](const EngineConfig& config, const Tokens& tokens, const Tokens& drafts) {
        return without_gil([&] { return head_logits(config, tokens, drafts); });
      },
      py::arg("config"), py::arg("tokens"), py::arg("drafts"));
  module.def(
      "drafted_tree",
      [](const EngineConfig& config, const Tokens& tokens) {
        DraftedTree tree = without_gil([&] { return drafted_tree(config, tokens); });
        return std::tuple(tree.tokens, tree.parents, tree.survivals);
      },
      py::arg("config"), py::arg("tokens"));
  module.def("load_eos_token_ids", &load_eos_token_ids, py::arg("directory"));
}

}  // namespace specdec::python
