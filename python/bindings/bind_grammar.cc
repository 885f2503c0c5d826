#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "specdec/bad_words.h"
#include "specdec/error.h"
#include "specdec/llguidance.h"
#include "specdec/reasoning.h"

namespace py = pybind11;

namespace specdec::python {
namespace {

// A matcher that keeps its grammar.
struct PythonMatcher {
  std::shared_ptr<const Grammar> grammar;
  std::unique_ptr<GrammarMatcher> matcher;

  py::array_t<uint32_t> mask() {
    py::array_t<uint32_t> words((grammar->vocab_size() + 31) / 32);
    matcher->fill_mask({words.mutable_data(), static_cast<size_t>(words.size())});
    return words;
  }
};

// What Python code throws is carried as text: a Python exception must not outlive the lock it was
// caught under.
std::function<std::vector<int32_t>(std::string_view)> tokenize_with(py::function function) {
  const std::shared_ptr<py::function> kept(new py::function(std::move(function)),
                                           [](py::function* owned) {
                                             const py::gil_scoped_acquire gil;
                                             delete owned;
                                           });
  return [kept](std::string_view text) {
    const py::gil_scoped_acquire gil;
    try {
      return (*kept)(py::str(text.data(), text.size())).cast<std::vector<int32_t>>();
    } catch (const std::exception& error) {
      throw Error(message_of(error));
    }
  };
}

std::unique_ptr<LlGuidance> make_llguidance(const std::string& library, int vocab_size,
                                            std::string tokenizer_json,
                                            std::vector<int32_t> end_token_ids,
                                            py::function tokenize) {
  GrammarVocabulary vocabulary{.vocab_size = vocab_size,
                               .tokenizer_json = std::move(tokenizer_json),
                               .end_token_ids = std::move(end_token_ids),
                               .tokenize = tokenize_with(std::move(tokenize))};
  return std::unique_ptr<LlGuidance>(
      without_gil([&] { return new LlGuidance(library, std::move(vocabulary)); }));
}

// std::string is cast to from bytes as from str.
std::shared_ptr<VocabularyTexts> make_texts(std::vector<std::string> texts) {
  return without_gil([&] { return std::make_shared<VocabularyTexts>(std::move(texts)); });
}

std::shared_ptr<BadWords> make_bad_words(std::shared_ptr<VocabularyTexts> texts,
                                         const std::vector<std::string>& words) {
  return without_gil([&] { return std::make_shared<BadWords>(std::move(texts), words); });
}

std::shared_ptr<Reasoning> make_reasoning(std::shared_ptr<VocabularyTexts> texts,
                                          std::vector<std::string> begin,
                                          std::vector<std::string> end, std::string gap) {
  ReasoningMarks marks{std::move(begin), std::move(end), std::move(gap)};
  return without_gil(
      [&] { return std::make_shared<Reasoning>(std::move(texts), std::move(marks)); });
}

}  // namespace

void bind_grammar(py::module_& module) {
  py::class_<PythonMatcher>(module, "GrammarMatcher")
      .def("mask", &PythonMatcher::mask)
      .def("advance", [](PythonMatcher& self, int32_t token) { self.matcher->advance(token); })
      .def("clone",
           [](const PythonMatcher& self) {
             return std::make_unique<PythonMatcher>(self.grammar, self.matcher->clone());
           })
      .def("forced_tokens", [](PythonMatcher& self) { return self.matcher->forced_tokens(); });
  py::class_<Grammar, std::shared_ptr<Grammar>>(module, "Grammar")
      .def_property_readonly("vocab_size", &Grammar::vocab_size)
      .def("make_matcher", [](const std::shared_ptr<Grammar>& grammar) {
        return std::make_unique<PythonMatcher>(grammar, grammar->make_matcher());
      });
  py::class_<VocabularyTexts, std::shared_ptr<VocabularyTexts>>(module, "VocabularyTexts")
      .def(py::init(&make_texts), py::arg("texts"));
  py::class_<BadWords, std::shared_ptr<BadWords>>(module, "BadWords")
      .def(py::init(&make_bad_words), py::arg("texts"), py::arg("words"));
  module.def(
      "without",
      [](std::shared_ptr<BadWords> words, std::shared_ptr<Grammar> grammar) {
        return std::const_pointer_cast<Grammar>(without(std::move(words), std::move(grammar)));
      },
      py::arg("words"), py::arg("grammar") = py::none());
  py::class_<Reasoning, std::shared_ptr<Reasoning>>(module, "Reasoning")
      .def(py::init(&make_reasoning), py::kw_only(), py::arg("texts"), py::arg("begin"),
           py::arg("end"), py::arg("gap"));
  module.def(
      "after_reasoning",
      [](std::shared_ptr<Reasoning> reasoning, bool has_begun, int budget,
         std::shared_ptr<Grammar> answer) {
        const auto start = has_begun ? ReasoningStart::kBegun : ReasoningStart::kOptional;
        return std::const_pointer_cast<Grammar>(
            after_reasoning(std::move(reasoning), start, budget, std::move(answer)));
      },
      py::arg("reasoning"), py::kw_only(), py::arg("has_begun"), py::arg("budget") = -1,
      py::arg("answer") = py::none());
  py::class_<LlGuidance>(module, "LlGuidance")
      .def(py::init(&make_llguidance), py::kw_only(), py::arg("library"), py::arg("vocab_size"),
           py::arg("tokenizer_json"), py::arg("end_token_ids"), py::arg("tokenize"))
      .def(
          "compile",
          [](const LlGuidance& self, const std::string& kind, const std::string& text) {
            return without_gil(
                [&] { return std::const_pointer_cast<Grammar>(self.compile(kind, text)); });
          },
          py::arg("kind"), py::arg("text"));
}

}  // namespace specdec::python
