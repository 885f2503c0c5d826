#include "bindings.h"
#include "specdec/device.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of specdec_native: token ids in, token ids out.";
  module.attr("__version__") = specdec::build_info().version;
  specdec::python::bind_errors(module);
  specdec::python::bind_option_info(module);
  specdec::python::bind_device(module);
  specdec::python::bind_grammar(module);
  specdec::python::bind_speculative(module);
  specdec::python::bind_ranks(module);
  specdec::python::bind_config(module);
  specdec::python::bind_sampling_params(module);
  specdec::python::bind_outputs(module);
  specdec::python::bind_engine(module);
  specdec::python::bind_model_facts(module);
  specdec::python::bind_log(module);
}
