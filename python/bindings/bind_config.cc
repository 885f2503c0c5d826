#include <type_traits>

#include "bind_options.h"
#include "bindings.h"
#include "specdec/config.h"
#include "specdec/fields.h"
#include "specdec/quantization.h"
#include "specdec/ranks.h"

namespace py = pybind11;

namespace specdec::python {
void bind_option_info(py::module_& module) {
  py::class_<OptionInfo>(module, "Option")
      .def_readonly("name", &OptionInfo::name)
      .def_readonly("type", &OptionInfo::type)
      .def_readonly("default", &OptionInfo::default_value)
      .def_readonly("help", &OptionInfo::help)
      .def_readonly("details", &OptionInfo::details)
      .def_readonly("lowest", &OptionInfo::lowest)
      .def_readonly("highest", &OptionInfo::highest)
      .def_readonly("above_lowest", &OptionInfo::above_lowest)
      .def_readonly("zero", &OptionInfo::zero)
      .def_readonly("choices", &OptionInfo::choices)
      .def_readonly("num_bits", &OptionInfo::num_bits);
}

void bind_config(py::module_& module) {
  py::class_<EngineConfig> config(module, "EngineConfig");
  config.def_readwrite("model", &EngineConfig::model)
      .def_readwrite("hf_overrides", &EngineConfig::hf_overrides)
      .def_readwrite("tapped_layers", &EngineConfig::tapped_layers)
      .def_readwrite("tap_final_hidden", &EngineConfig::tap_final_hidden)
      .def_readwrite("speculative", &EngineConfig::speculative)
      .def_readwrite("rank_group", &EngineConfig::rank_group);
  def_options(config, kEngineOptions);
  module.def("known_quantizations", &known_quantizations);
  module.def(
      "check_quantization", [](const std::string& name) { parse_quantization(name); },
      py::arg("name"));
  py::class_<ModelInfo> info(module, "ModelInfo");
  for_each_field<ModelInfo>(
      [&info](const char* name, auto member) { info.def_readonly(name, member); });
  info.def(py::pickle(
      [](const ModelInfo& self) {
        py::dict facts;
        for_each_field<ModelInfo>(
            [&](const char* name, auto member) { facts[name] = py::cast(self.*member); });
        return facts;
      },
      [](const py::dict& facts) {
        ModelInfo self;
        for_each_field<ModelInfo>([&](const char* name, auto member) {
          self.*member = facts[name].cast<std::remove_reference_t<decltype(self.*member)>>();
        });
        return self;
      }));
}

}  // namespace specdec::python
