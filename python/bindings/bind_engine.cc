#include <pybind11/stl.h>

#include "bindings.h"
#include "specdec/engine.h"

namespace py = pybind11;

namespace specdec::python {

void bind_engine(py::module_& module) {
  py::class_<EngineStats>(module, "EngineStats")
      .def_readonly("num_running", &EngineStats::num_running)
      .def_readonly("num_waiting", &EngineStats::num_waiting)
      .def_readonly("num_kv_blocks", &EngineStats::num_kv_blocks)
      .def_readonly("num_free_kv_blocks", &EngineStats::num_free_kv_blocks)
      .def_readonly("num_cached_kv_blocks", &EngineStats::num_cached_kv_blocks)
      .def_readonly("num_steps", &EngineStats::num_steps)
      .def_readonly("num_device_steps", &EngineStats::num_device_steps)
      .def_readonly("num_prompt_tokens", &EngineStats::num_prompt_tokens)
      .def_readonly("num_cached_tokens", &EngineStats::num_cached_tokens)
      .def_readonly("num_generation_tokens", &EngineStats::num_generation_tokens)
      .def_readonly("num_preemptions", &EngineStats::num_preemptions)
      .def_readonly("num_finished_requests", &EngineStats::num_finished_requests)
      .def_readonly("num_aborted_requests", &EngineStats::num_aborted_requests)
      .def_readonly("schedule_seconds", &EngineStats::schedule_seconds)
      .def_readonly("draft_seconds", &EngineStats::draft_seconds)
      .def_readonly("forward_seconds", &EngineStats::forward_seconds)
      .def_readonly("sample_seconds", &EngineStats::sample_seconds)
      .def_readonly("commit_seconds", &EngineStats::commit_seconds)
      .def_readonly("acceptance", &EngineStats::acceptance)
      .def_readonly("drafters", &EngineStats::drafters)
      .def_readonly("draft_policy", &EngineStats::draft_policy);

  // Loading and stepping are long: other Python threads run meanwhile.
  using release_gil = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(module, "Engine")
      .def(py::init<const EngineConfig&>(), py::arg("config"), release_gil())
      .def("add_request", &Engine::add_request, py::arg("request_id"), py::arg("prompt_token_ids"),
           py::arg("params"))
      .def("abort", &Engine::abort, py::arg("request_id"))
      .def("stop_completion", &Engine::stop_completion, py::arg("request_id"), py::arg("index"))
      .def("step", &Engine::step, release_gil())
      .def("has_unfinished_requests", &Engine::has_unfinished_requests)
      .def("reset_prefix_cache", &Engine::reset_prefix_cache)
      .def("stats", &Engine::stats)
      .def("model_info", &Engine::model_info);
}

}  // namespace specdec::python
