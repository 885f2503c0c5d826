#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "specdec/engine.h"
#include "specdec/engine_loop.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

// The loop's thread may need the GIL to end (a Python drafter goes with it).
void delete_loop(EngineLoop* loop) {
  if (PyGILState_Check() == 0) {
    delete loop;
    return;
  }
  without_gil([loop] { delete loop; });
}

// Aborts its request when the last reference goes, whatever made it go.
class RequestHandle {
 public:
  RequestHandle(std::shared_ptr<EngineLoop> loop, uint64_t id) : loop_(std::move(loop)), id_(id) {}
  RequestHandle(RequestHandle&&) = default;
  ~RequestHandle() { abort(); }

  void abort() {
    if (loop_ != nullptr) loop_->abort(id_);
  }

 private:
  std::shared_ptr<EngineLoop> loop_;  // null in what was moved from
  uint64_t id_;
};

// A Python object as a loop's context.
std::shared_ptr<void> as_context(py::object object) {
  return {object.release().ptr(), [](void* held) {
            const py::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

// (id, prompt token ids, parameters, options, context) of each request.
using RequestTuple =
    std::tuple<uint64_t, std::vector<int32_t>, SamplingParams, RequestOptions, py::object>;

std::vector<RequestHandle> add_requests(const std::shared_ptr<EngineLoop>& loop,
                                        std::vector<RequestTuple> tuples, bool by_step) {
  std::vector<LoopRequest> requests;
  std::vector<uint64_t> ids;
  for (auto& [id, prompt, params, options, context] : tuples) {
    ids.push_back(id);
    requests.push_back({.id = id,
                        .prompt_token_ids = std::move(prompt),
                        .params = std::move(params),
                        .options = std::move(options),
                        .context = as_context(std::move(context)),
                        .by_step = by_step});
  }
  loop->add(std::move(requests));
  std::vector<RequestHandle> handles;
  for (uint64_t id : ids) handles.emplace_back(loop, id);
  return handles;
}

// ([(context, output)], number of the last step asked for that was taken), or None at the end.
py::object take_outputs(EngineLoop& loop) {
  std::optional<EngineLoop::Batch> batch = without_gil([&loop] { return loop.take_outputs(); });
  if (!batch.has_value()) return py::none();
  py::list outputs;
  for (LoopOutput& entry : batch->outputs) {
    outputs.append(py::make_tuple(
        py::reinterpret_borrow<py::object>(static_cast<PyObject*>(entry.context.get())),
        std::move(entry.output)));
  }
  return py::make_tuple(std::move(outputs), batch->last_answered_step);
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<RequestOptions>(module, "RequestOptions")
      .def(py::init([](std::string cache_salt, int64_t priority,
                       std::vector<int32_t> resumed_token_ids) {
             return RequestOptions{.cache_salt = std::move(cache_salt),
                                   .priority = priority,
                                   .resumed_token_ids = std::move(resumed_token_ids)};
           }),
           py::kw_only(), py::arg("cache_salt") = "", py::arg("priority") = 0,
           py::arg("resumed_token_ids") = std::vector<int32_t>{});

  py::class_<EngineLoad>(module, "EngineLoad")
      .def_readonly("num_running", &EngineLoad::num_running)
      .def_readonly("num_waiting", &EngineLoad::num_waiting)
      .def_readonly("num_waiting_tokens", &EngineLoad::num_waiting_tokens)
      .def_readonly("num_free_kv_blocks", &EngineLoad::num_free_kv_blocks)
      .def_readonly("num_kv_blocks", &EngineLoad::num_kv_blocks);
  py::class_<StepTokens>(module, "StepTokens")
      .def_property_readonly_static("bounds", [](const py::object&) { return StepTokens::kBounds; })
      .def_readonly("counts", &StepTokens::counts)
      .def_readonly("sum", &StepTokens::sum);

  py::class_<EngineStats>(module, "EngineStats")
      .def_readonly("num_running", &EngineStats::num_running)
      .def_readonly("num_waiting", &EngineStats::num_waiting)
      .def_readonly("num_kv_blocks", &EngineStats::num_kv_blocks)
      .def_readonly("num_free_kv_blocks", &EngineStats::num_free_kv_blocks)
      .def_readonly("num_cached_kv_blocks", &EngineStats::num_cached_kv_blocks)
      .def_readonly("num_steps", &EngineStats::num_steps)
      .def_readonly("num_device_steps", &EngineStats::num_device_steps)
      .def_readonly("num_overlapped_steps", &EngineStats::num_overlapped_steps)
      .def_readonly("num_prompt_tokens", &EngineStats::num_prompt_tokens)
      .def_readonly("num_cached_tokens", &EngineStats::num_cached_tokens)
      .def_readonly("num_generation_tokens", &EngineStats::num_generation_tokens)
      .def_readonly("num_preemptions", &EngineStats::num_preemptions)
      .def_readonly("num_finished_requests", &EngineStats::num_finished_requests)
      .def_readonly("num_aborted_requests", &EngineStats::num_aborted_requests)
      .def_readonly("step_tokens", &EngineStats::step_tokens)
      .def_readonly("schedule_seconds", &EngineStats::schedule_seconds)
      .def_readonly("draft_seconds", &EngineStats::draft_seconds)
      .def_readonly("forward_seconds", &EngineStats::forward_seconds)
      .def_readonly("sample_seconds", &EngineStats::sample_seconds)
      .def_readonly("commit_seconds", &EngineStats::commit_seconds)
      .def_readonly("acceptance", &EngineStats::acceptance)
      .def_readonly("drafters", &EngineStats::drafters)
      .def_readonly("draft_policy", &EngineStats::draft_policy);

  // Loading and waiting are long: other Python threads run meanwhile.
  py::class_<EngineLoop, std::shared_ptr<EngineLoop>>(module, "EngineLoop")
      .def(py::init([](const EngineConfig& config) {
             return std::shared_ptr<EngineLoop>(
                 without_gil([&config] { return new EngineLoop(config); }), &delete_loop);
           }),
           py::arg("config"))
      .def("add", &add_requests, py::arg("requests"), py::arg("by_step"))
      .def("abort", &EngineLoop::abort, py::arg("id"))
      .def("stop_completion", &EngineLoop::stop_completion, py::arg("id"), py::arg("index"))
      .def("ask_for_step", &EngineLoop::ask_for_step)
      .def("take_outputs", &take_outputs)
      .def("stats", [](EngineLoop& loop) { return without_gil([&] { return loop.stats(); }); })
      .def("reset_prefix_cache",
           [](EngineLoop& loop) { return without_gil([&] { return loop.reset_prefix_cache(); }); })
      .def("load", &EngineLoop::load)
      .def("check_health",
           [](const EngineLoop& loop) {
             if (const std::exception_ptr failure = loop.failure()) std::rethrow_exception(failure);
           })
      .def("is_loop_thread", &EngineLoop::is_loop_thread)
      .def("stop", &EngineLoop::stop)
      .def("close", [](EngineLoop& loop) { without_gil([&] { loop.close(); }); })
      .def("model_info", &EngineLoop::model_info);
  py::class_<RequestHandle>(module, "RequestHandle").def("abort", &RequestHandle::abort);
}

}  // namespace specdec::python
