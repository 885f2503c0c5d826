#include <memory>
#include <string>

#include "bindings.h"
#include "specdec/config.h"
#include "specdec/ranks.h"

namespace py = pybind11;

namespace specdec::python {

void bind_ranks(py::module_& module) {
  py::class_<RankGroup, std::shared_ptr<RankGroup>>(module, "RankGroup")
      .def(py::init<int>(), py::arg("num_ranks"))
      .def(py::init<int, const std::string&, int>(), py::arg("num_ranks"), py::arg("host"),
           py::arg("port"))
      .def_property_readonly("name", &RankGroup::name)
      .def("fail", &RankGroup::fail, py::arg("rank"), py::arg("cause"));
  module.def("is_leading_rank", &is_leading_rank, py::arg("config"));
  module.def(
      "serve_rank",
      [](const EngineConfig& config, const std::string& name, int rank) {
        without_gil([&] { serve_rank(config, name, rank); });
      },
      py::arg("config"), py::arg("name") = "", py::arg("rank") = 0);
}

}  // namespace specdec::python
