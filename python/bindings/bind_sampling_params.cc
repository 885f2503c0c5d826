#include <pybind11/numpy.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind_options.h"
#include "bindings.h"
#include "specdec/error.h"
#include "specdec/sampling_params.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

// A Python object with name and apply(prompt, output, logits). Its last reference may go in any
// thread.
class PythonLogitsProcessor final : public LogitsProcessor {
 public:
  explicit PythonLogitsProcessor(py::object object)
      : object_(std::move(object)), name_(object_.attr("name").cast<std::string>()) {}
  ~PythonLogitsProcessor() override {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  PythonLogitsProcessor(const PythonLogitsProcessor&) = delete;
  PythonLogitsProcessor& operator=(const PythonLogitsProcessor&) = delete;

  const py::object& object() const { return object_; }
  std::string name() const override { return name_; }

  void apply(std::span<const int32_t> prompt, std::span<const int32_t> output,
             std::span<float> logits) override {
    const py::gil_scoped_acquire gil;
    try {
      // An array of its own: Python may keep it.
      const py::array_t<float> given(static_cast<py::ssize_t>(logits.size()), logits.data());
      const auto changed =
          object_.attr("apply")(to_list(prompt), to_list(output), given).cast<Array>();
      if (static_cast<size_t>(changed.size()) != logits.size()) {
        throw Error("returned another number of logits");
      }
      std::copy_n(changed.data(), logits.size(), logits.data());
    } catch (const std::exception& error) {
      // Carried as text: a Python exception must not outlive the lock it was caught under.
      throw Error(message_of(error));
    }
  }

 private:
  using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;

  static std::vector<int32_t> to_list(std::span<const int32_t> tokens) {
    return {tokens.begin(), tokens.end()};
  }

  py::object object_;
  std::string name_;
};

py::list processor_objects(const SamplingParams& params) {
  py::list objects;
  for (const auto& processor : params.logits_processors) {
    const auto* python = dynamic_cast<const PythonLogitsProcessor*>(processor.get());
    objects.append(python == nullptr ? py::none() : python->object());
  }
  return objects;
}

void set_processors(SamplingParams& params, const std::vector<py::object>& objects) {
  params.logits_processors.clear();
  for (const py::object& object : objects) {
    params.logits_processors.push_back(std::make_shared<PythonLogitsProcessor>(object));
  }
}

}  // namespace

void bind_sampling_params(py::module_& module) {
  py::class_<SamplingParams> params(module, "SamplingParams");
  params.def_property("logits_processors", &processor_objects, &set_processors)
      .def_property(
          "grammar",
          [](const SamplingParams& self) { return std::const_pointer_cast<Grammar>(self.grammar); },
          [](SamplingParams& self, std::shared_ptr<Grammar> grammar) {
            self.grammar = std::move(grammar);
          })
      .def("validate", &SamplingParams::validate, py::arg("vocab_size") = 0);
  def_options(params, kSamplingOptions);
}

}  // namespace specdec::python
