#include "bind_options.h"
#include "bindings.h"
#include "specdec/config.h"
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
  py::class_<ModelInfo>(module, "ModelInfo")
      .def_readonly("architecture", &ModelInfo::architecture)
      .def_readonly("dtype", &ModelInfo::dtype)
      .def_readonly("weight_format", &ModelInfo::weight_format)
      .def_readonly("device", &ModelInfo::device)
      .def_readonly("isa", &ModelInfo::isa)
      .def_readonly("num_layers", &ModelInfo::num_layers)
      .def_readonly("hidden_size", &ModelInfo::hidden_size)
      .def_readonly("num_heads", &ModelInfo::num_heads)
      .def_readonly("num_kv_heads", &ModelInfo::num_kv_heads)
      .def_readonly("head_dim", &ModelInfo::head_dim)
      .def_readonly("vocab_size", &ModelInfo::vocab_size)
      .def_readonly("max_model_len", &ModelInfo::max_model_len)
      .def_readonly("max_num_seqs", &ModelInfo::max_num_seqs)
      .def_readonly("max_num_batched_tokens", &ModelInfo::max_num_batched_tokens)
      .def_readonly("num_threads", &ModelInfo::num_threads)
      .def_readonly("num_kv_blocks", &ModelInfo::num_kv_blocks)
      .def_readonly("block_size", &ModelInfo::block_size)
      .def_readonly("num_parameters", &ModelInfo::num_parameters)
      .def_readonly("weight_bytes", &ModelInfo::weight_bytes)
      .def_readonly("kv_cache_dtype", &ModelInfo::kv_cache_dtype)
      .def_readonly("kv_cache_bytes", &ModelInfo::kv_cache_bytes);
}

}  // namespace specdec::python
