#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "specdec/request_output.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

std::optional<std::string> finish_reason_name(const CompletionOutput& output) {
  switch (output.finish_reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return std::nullopt;
}

// An array over the states themselves, which live as long; NumPy has no bfloat16, so its bits stand
// in a uint16.
py::object tapped_array(const CompletionOutput& output) {
  if (output.tapped_states == nullptr) return py::none();
  using Owner = std::shared_ptr<const TappedStates>;
  const TappedStates& states = *output.tapped_states;
  const py::capsule owner(new Owner(output.tapped_states),
                          [](void* owned) { delete static_cast<Owner*>(owned); });
  const char* dtype = states.dtype == "bfloat16" ? "uint16" : states.dtype.c_str();
  return py::array(py::dtype(dtype),
                   std::vector<py::ssize_t>{states.num_tokens, states.num_taps, states.hidden_size},
                   states.values.data(), owner);
}

}  // namespace

void bind_outputs(py::module_& module) {
  py::class_<Logprob>(module, "Logprob")
      .def_readonly("token_id", &Logprob::token_id)
      .def_readonly("logprob", &Logprob::logprob)
      .def_readonly("rank", &Logprob::rank);
  py::class_<DraftedToken>(module, "DraftedToken")
      .def_readonly("token_id", &DraftedToken::token_id)
      .def_readonly("parent", &DraftedToken::parent)
      .def_readonly("drafter", &DraftedToken::drafter)
      .def_readonly("probability", &DraftedToken::probability)
      .def_readonly("is_accepted", &DraftedToken::is_accepted);
  py::class_<CompletionOutput>(module, "CompletionOutput")
      .def_readonly("index", &CompletionOutput::index)
      .def_readonly("new_token_ids", &CompletionOutput::new_token_ids)
      .def_readonly("new_logprobs", &CompletionOutput::new_logprobs)
      .def_property_readonly("finish_reason", &finish_reason_name)
      .def_readonly("stop_token_id", &CompletionOutput::stop_token_id)
      // A view, no copy: one is read at every step.
      .def_property_readonly("acceptance",
                             [](const CompletionOutput& output) {
                               return output.acceptance.has_value() ? &*output.acceptance : nullptr;
                             })
      .def_property_readonly(
          "draft_step",
          [](const CompletionOutput& output) -> std::optional<std::pair<int, int>> {
            if (!output.draft_step.has_value()) return std::nullopt;
            return {{output.draft_step->num_draft_tokens, output.draft_step->num_accepted_tokens}};
          })
      .def_property_readonly("draft_tree",
                             [](const CompletionOutput& output) {
                               return output.draft_step.has_value() ? output.draft_step->tree
                                                                    : std::vector<DraftedToken>{};
                             })
      .def_property_readonly("tapped_states", &tapped_array);
  py::class_<RequestMetrics>(module, "RequestMetrics")
      .def_readonly("arrival_time", &RequestMetrics::arrival_time)
      .def_readonly("first_scheduled_time", &RequestMetrics::first_scheduled_time)
      .def_readonly("first_token_time", &RequestMetrics::first_token_time)
      .def_readonly("finished_time", &RequestMetrics::finished_time)
      .def_readonly("num_cached_tokens", &RequestMetrics::num_cached_tokens)
      .def_readonly("num_preemptions", &RequestMetrics::num_preemptions);
  py::class_<RequestOutput>(module, "RequestOutput")
      .def_readonly("request_id", &RequestOutput::request_id)
      .def_readonly("outputs", &RequestOutput::outputs)
      .def_readonly("new_prompt_logprobs", &RequestOutput::new_prompt_logprobs)
      .def_readonly("finished", &RequestOutput::finished)
      .def_readonly("error", &RequestOutput::error)
      .def("raise_engine_failure",
           [](const RequestOutput& output) {
             if (output.engine_failure) std::rethrow_exception(output.engine_failure);
           })
      .def_readonly("metrics", &RequestOutput::metrics);
}

}  // namespace specdec::python
