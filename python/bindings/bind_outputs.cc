#include <pybind11/stl.h>

#include <optional>
#include <string>

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

}  // namespace

void bind_outputs(py::module_& module) {
  py::class_<Logprob>(module, "Logprob")
      .def_readonly("token_id", &Logprob::token_id)
      .def_readonly("logprob", &Logprob::logprob)
      .def_readonly("rank", &Logprob::rank);
  py::class_<CompletionOutput>(module, "CompletionOutput")
      .def_readonly("index", &CompletionOutput::index)
      .def_readonly("new_token_ids", &CompletionOutput::new_token_ids)
      .def_readonly("new_logprobs", &CompletionOutput::new_logprobs)
      .def_property_readonly("finish_reason", &finish_reason_name)
      .def_readonly("stop_token_id", &CompletionOutput::stop_token_id)
      .def_readonly("acceptance", &CompletionOutput::acceptance);
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
      .def_readonly("engine_failed", &RequestOutput::engine_failed)
      .def_readonly("metrics", &RequestOutput::metrics);
}

}  // namespace specdec::python
