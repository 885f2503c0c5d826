#include <pybind11/stl.h>

#include "bindings.h"
#include "specdec/sampling_params.h"

namespace py = pybind11;

namespace specdec::python {

void bind_sampling_params(py::module_& module) {
  py::class_<SamplingParams>(module, "SamplingParams")
      .def(py::init([](const py::kwargs& keywords) {
        return from_keywords<SamplingParams>("SamplingParams", keywords);
      }))
      .def_readwrite("n", &SamplingParams::n)
      .def_readwrite("temperature", &SamplingParams::temperature)
      .def_readwrite("top_p", &SamplingParams::top_p)
      .def_readwrite("top_k", &SamplingParams::top_k)
      .def_readwrite("min_p", &SamplingParams::min_p)
      .def_readwrite("presence_penalty", &SamplingParams::presence_penalty)
      .def_readwrite("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_readwrite("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_readwrite("logit_bias", &SamplingParams::logit_bias)
      .def_readwrite("allowed_token_ids", &SamplingParams::allowed_token_ids)
      .def_readwrite("bad_words", &SamplingParams::bad_words)
      .def_readwrite("max_tokens", &SamplingParams::max_tokens)
      .def_readwrite("min_tokens", &SamplingParams::min_tokens)
      .def_readwrite("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_readwrite("eos_token_ids", &SamplingParams::eos_token_ids)
      .def_readwrite("ignore_eos", &SamplingParams::ignore_eos)
      .def_readwrite("seed", &SamplingParams::seed)
      .def_readwrite("logprobs", &SamplingParams::logprobs)
      .def_readwrite("prompt_logprobs", &SamplingParams::prompt_logprobs)
      .def_readwrite("num_speculative_tokens", &SamplingParams::num_speculative_tokens)
      .def("validate", &SamplingParams::validate, py::arg("vocab_size") = 0);
}

}  // namespace specdec::python
