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
#include "specdec/fields.h"

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

// (id, request, context) of each request.
using RequestTuple = std::tuple<uint64_t, PreparedRequest, py::object>;

std::vector<RequestHandle> add_requests(const std::shared_ptr<EngineLoop>& loop,
                                        std::vector<RequestTuple> tuples, bool by_step) {
  std::vector<LoopRequest> requests;
  std::vector<uint64_t> ids;
  for (auto& [id, request, context] : tuples) {
    ids.push_back(id);
    requests.push_back({.id = id,
                        .request = std::move(request),
                        .context = as_context(std::move(context)),
                        .by_step = by_step});
  }
  loop->add(std::move(requests));
  std::vector<RequestHandle> handles;
  for (uint64_t id : ids) handles.emplace_back(loop, id);
  return handles;
}

// Python's dataclasses of statistics (requests/outputs.py) take these as arguments.
template <class Struct>
py::dict fields_of(const Struct& of);

template <class Value>
py::object python_value(const Value& value) {
  if constexpr (std::is_same_v<Value, AcceptanceStats>) {
    return py::cast(value);  // a class of the module
  } else if constexpr (!std::is_same_v<decltype(kFields<Value>), const std::tuple<>>) {
    return fields_of(value);
  } else {
    return py::cast(value);
  }
}

py::object python_value(const std::vector<DrafterStats>& drafters) {
  py::list list;
  for (const DrafterStats& drafter : drafters) list.append(fields_of(drafter));
  return list;
}

template <class Struct>
py::dict fields_of(const Struct& of) {
  py::dict fields;
  for_each_field<Struct>(
      [&](const char* name, auto member) { fields[name] = python_value(of.*member); });
  if constexpr (std::is_same_v<Struct, StepTokens>) fields["bounds"] = StepTokens::kBounds;
  if constexpr (std::is_same_v<Struct, DraftPolicyStats>) {
    fields["mean_draft_length"] = of.mean_draft_length();
  }
  return fields;
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
  py::class_<PreparedParams>(module, "PreparedParams")
      .def(py::init<const ModelInfo&, SamplingParams>(), py::arg("engine"), py::arg("params"));
  py::class_<PreparedRequest>(module, "PreparedRequest")
      .def(py::init([](const PreparedParams& params, std::vector<int32_t> prompt_token_ids,
                       std::string cache_salt, int64_t priority,
                       std::vector<int32_t> resumed_token_ids, const std::string& prompt_name) {
             return PreparedRequest(params, std::move(prompt_token_ids),
                                    {.cache_salt = std::move(cache_salt),
                                     .priority = priority,
                                     .resumed_token_ids = std::move(resumed_token_ids)},
                                    prompt_name);
           }),
           py::arg("params"), py::arg("prompt_token_ids"), py::kw_only(),
           py::arg("cache_salt") = "", py::arg("priority") = 0,
           py::arg("resumed_token_ids") = std::vector<int32_t>{}, py::arg("prompt_name") = "prompt")
      .def("part", &PreparedRequest::part, py::arg("first"), py::arg("count"))
      .def_static("refuse_length", &PreparedRequest::refuse_length, py::arg("prompt_name"),
                  py::arg("amount"), py::arg("max_model_len"));

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
      .def("stats",
           [](EngineLoop& loop) { return fields_of(without_gil([&] { return loop.stats(); })); })
      .def("reset_prefix_cache",
           [](EngineLoop& loop) { return without_gil([&] { return loop.reset_prefix_cache(); }); })
      .def("load", [](const EngineLoop& loop) { return fields_of(loop.load()); })
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
