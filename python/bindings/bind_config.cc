#include <pybind11/stl.h>

#include "bindings.h"
#include "specdec/config.h"
#include "specdec/quantization.h"

namespace py = pybind11;

namespace specdec::python {

void bind_config(py::module_& module) {
  py::class_<EngineConfig>(module, "EngineConfig")
      .def(py::init([](const py::kwargs& keywords) {
        return from_keywords<EngineConfig>("EngineConfig", keywords);
      }))
      .def_readwrite("model", &EngineConfig::model)
      .def_readwrite("dtype", &EngineConfig::dtype)
      .def_readwrite("load_format", &EngineConfig::load_format)
      .def_readwrite("hf_overrides", &EngineConfig::hf_overrides)
      .def_readwrite("quantization", &EngineConfig::quantization)
      .def_readwrite("device", &EngineConfig::device)
      .def_readwrite("cpu_isa", &EngineConfig::cpu_isa)
      .def_readwrite("max_model_len", &EngineConfig::max_model_len)
      .def_readwrite("max_num_seqs", &EngineConfig::max_num_seqs)
      .def_readwrite("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens)
      .def_readwrite("kv_cache_dtype", &EngineConfig::kv_cache_dtype)
      .def_readwrite("kv_cache_memory_bytes", &EngineConfig::kv_cache_memory_bytes)
      .def_readwrite("num_kv_blocks", &EngineConfig::num_kv_blocks)
      .def_readwrite("gpu_memory_utilization", &EngineConfig::gpu_memory_utilization)
      .def_readwrite("block_size", &EngineConfig::block_size)
      .def_readwrite("enable_prefix_caching", &EngineConfig::enable_prefix_caching)
      .def_readwrite("enforce_eager", &EngineConfig::enforce_eager)
      .def_readwrite("deterministic", &EngineConfig::deterministic)
      .def_readwrite("num_threads", &EngineConfig::num_threads)
      .def_readwrite("seed", &EngineConfig::seed)
      .def_readwrite("logprobs_mode", &EngineConfig::logprobs_mode)
      .def_readwrite("speculative", &EngineConfig::speculative);
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
