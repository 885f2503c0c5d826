#include <type_traits>

#include "bind_options.h"
#include "bindings.h"
#include "specdec/config.h"
#include "specdec/quantization.h"
#include "specdec/ranks.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

template <class Visit>
void for_each_model_fact(Visit visit) {
  visit("architecture", &ModelInfo::architecture);
  visit("dtype", &ModelInfo::dtype);
  visit("weight_format", &ModelInfo::weight_format);
  visit("device", &ModelInfo::device);
  visit("isa", &ModelInfo::isa);
  visit("num_layers", &ModelInfo::num_layers);
  visit("hidden_size", &ModelInfo::hidden_size);
  visit("num_heads", &ModelInfo::num_heads);
  visit("num_kv_heads", &ModelInfo::num_kv_heads);
  visit("head_dim", &ModelInfo::head_dim);
  visit("vocab_size", &ModelInfo::vocab_size);
  visit("max_model_len", &ModelInfo::max_model_len);
  visit("max_num_seqs", &ModelInfo::max_num_seqs);
  visit("max_num_batched_tokens", &ModelInfo::max_num_batched_tokens);
  visit("num_speculative_tokens", &ModelInfo::num_speculative_tokens);
  visit("has_priorities", &ModelInfo::has_priorities);
  visit("num_threads", &ModelInfo::num_threads);
  visit("num_kv_blocks", &ModelInfo::num_kv_blocks);
  visit("block_size", &ModelInfo::block_size);
  visit("num_parameters", &ModelInfo::num_parameters);
  visit("weight_bytes", &ModelInfo::weight_bytes);
  visit("kv_cache_dtype", &ModelInfo::kv_cache_dtype);
  visit("kv_cache_bytes", &ModelInfo::kv_cache_bytes);
}

}  // namespace

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
  for_each_model_fact([&info](const char* name, auto member) { info.def_readonly(name, member); });
  info.def(py::pickle(
      [](const ModelInfo& self) {
        py::dict facts;
        for_each_model_fact(
            [&](const char* name, auto member) { facts[name] = py::cast(self.*member); });
        return facts;
      },
      [](const py::dict& facts) {
        ModelInfo self;
        for_each_model_fact([&](const char* name, auto member) {
          self.*member = facts[name].cast<std::remove_reference_t<decltype(self.*member)>>();
        });
        return self;
      }));
}

}  // namespace specdec::python
