#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind_options.h"
#include "bindings.h"
#include "specdec/acceptance_stats.h"
#include "specdec/error.h"
#include "specdec/fields.h"
#include "specdec/speculative_config.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

// A Python object with propose(tokens, max_tokens). Its last reference may go in any thread.
class PythonDrafter final : public CustomDrafter {
 public:
  explicit PythonDrafter(py::object object) : object_(std::move(object)) {}
  ~PythonDrafter() override {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  PythonDrafter(const PythonDrafter&) = delete;
  PythonDrafter& operator=(const PythonDrafter&) = delete;

  const py::object& object() const { return object_; }

  std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens,
                                            int max_tokens) override {
    const py::gil_scoped_acquire gil;
    try {
      const py::object drafts =
          object_.attr("propose")(std::vector<int32_t>(tokens.begin(), tokens.end()), max_tokens);
      return drafts.cast<std::vector<std::vector<int32_t>>>();
    } catch (const std::exception& error) {
      // Carried as text: a Python exception must not outlive the lock it was caught under.
      throw Error("the custom drafter failed: " + message_of(error));
    }
  }

 private:
  py::object object_;
};

void bind_drafter_config(py::module_& module) {
  py::class_<DrafterConfig> drafter(module, "DrafterConfig");
  drafter.def_property(
      "custom",
      [](const DrafterConfig& config) -> py::object {
        const auto* drafter = dynamic_cast<const PythonDrafter*>(config.custom.get());
        return drafter == nullptr ? py::none() : drafter->object();
      },
      [](DrafterConfig& config, const py::object& object) {
        config.custom = object.is_none() ? nullptr : std::make_shared<PythonDrafter>(object);
      });
  drafter.def_readwrite("suffix_corpus", &DrafterConfig::suffix_corpus);
  def_options(drafter, kDrafterOptions);
}

void bind_speculative_config(py::module_& module) {
  using Range = std::tuple<int, int, int>;
  py::class_<SpeculativeConfig> speculative(module, "SpeculativeConfig");
  speculative.def_readwrite("drafters", &SpeculativeConfig::drafters)
      .def_readwrite("speculative_token_tree", &SpeculativeConfig::speculative_token_tree)
      .def_property(
          "num_speculative_tokens_per_batch_size",
          [](const SpeculativeConfig& config) {
            std::vector<Range> ranges;
            for (const BatchSizeRange& range : config.num_speculative_tokens_per_batch_size) {
              ranges.emplace_back(range.first, range.last, range.num_speculative_tokens);
            }
            return ranges;
          },
          [](SpeculativeConfig& config, const std::vector<Range>& ranges) {
            config.num_speculative_tokens_per_batch_size.clear();
            for (const auto& [first, last, count] : ranges) {
              config.num_speculative_tokens_per_batch_size.push_back({first, last, count});
            }
          })
      .def("validate", &SpeculativeConfig::validate);
  def_options(speculative, kSpeculativeOptions);
}

}  // namespace

void bind_speculative(py::module_& module) {
  bind_drafter_config(module);
  bind_speculative_config(module);
  module.def(
      "method_takes",
      [](const std::string& method, const std::string& option) {
        return method_takes(enum_value<DraftMethod>("method", method), option);
      },
      py::arg("method"), py::arg("option"));
  py::class_<AcceptanceStats> acceptance(module, "AcceptanceStats");
  for_each_field<AcceptanceStats>(
      [&](const char* name, auto member) { acceptance.def_readonly(name, member); });
  acceptance
      .def_property_readonly("mean_acceptance_length", &AcceptanceStats::mean_acceptance_length)
      .def_property_readonly("draft_acceptance_rate", &AcceptanceStats::draft_acceptance_rate);
}

}  // namespace specdec::python
