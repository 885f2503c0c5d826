#include <pybind11/stl.h>

#include "bindings.h"
#include "specdec/model_facts.h"

namespace py = pybind11;

namespace specdec::python {

void bind_model_facts(py::module_& module) {
  py::class_<ModelFacts>(module, "ModelFacts")
      .def_readonly("architecture", &ModelFacts::architecture)
      .def_readonly("dtype", &ModelFacts::dtype)
      .def_readonly("max_position_embeddings", &ModelFacts::max_position_embeddings)
      .def_readonly("num_experts", &ModelFacts::num_experts)
      .def_readonly("num_experts_per_token", &ModelFacts::num_experts_per_token)
      .def_readonly("num_ranks", &ModelFacts::num_ranks)
      .def_readonly("hidden_size", &ModelFacts::hidden_size)
      .def_property_readonly("num_layers", &ModelFacts::num_layers)
      .def_property_readonly("num_exchanges", &ModelFacts::num_exchanges)
      .def("stage", &ModelFacts::stage, py::arg("index"), py::arg("num_stages"))
      .def("pass_bytes", &ModelFacts::pass_bytes, py::arg("num_rows"), py::arg("batch"),
           py::arg("context"))
      .def("pass_flops", &ModelFacts::pass_flops, py::arg("num_rows"), py::arg("context"),
           py::arg("num_scored") = py::none())
      .def("received_bytes", &ModelFacts::received_bytes, py::arg("num_rows"))
      .def("memory_bytes", &ModelFacts::memory_bytes, py::arg("num_tokens"));
  const auto formats = [](const char* dtype, const char* quantization, const char* kv_cache_dtype) {
    return FactsFormats{dtype, quantization, kv_cache_dtype};
  };
  module.def(
      "model_facts",
      [formats](const std::string& directory, const char* dtype, const char* quantization,
                const char* kv_cache_dtype) {
        return model_facts(directory, formats(dtype, quantization, kv_cache_dtype));
      },
      py::arg("directory"), py::kw_only(), py::arg("dtype") = "auto",
      py::arg("quantization") = "auto", py::arg("kv_cache_dtype") = "auto");
  module.def(
      "head_facts",
      [](const DrafterConfig& head, const std::string& target_directory) {
        return head_facts(head, target_directory, {});
      },
      py::arg("head"), py::arg("target_directory"));
  module.def("scores_with_target", &scores_with_target, py::arg("head"),
             py::arg("target_directory"), py::kw_only(), py::arg("random_weights") = false);
}

}  // namespace specdec::python
