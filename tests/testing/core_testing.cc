// The Python module specdec_native._core_testing: what tests look at inside of the core. Types are
// those of _core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "testing/draft_probe.h"

namespace py = pybind11;

namespace specdec::testing {

using Tokens = std::vector<int32_t>;

PYBIND11_MODULE(_core_testing, module) {
  py::module_::import("specdec_native._core");
  module.def("head_logits", &head_logits, py::arg("config"), py::arg("tokens"), py::arg("drafts"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "drafted_tree",
      [](const EngineConfig& config, const Tokens& tokens) {
        const DraftedTree tree = drafted_tree(config, tokens);
        return std::tuple(tree.tokens, tree.parents, tree.survivals);
      },
      py::arg("config"), py::arg("tokens"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace specdec::testing
