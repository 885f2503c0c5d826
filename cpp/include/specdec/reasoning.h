// Answers of models that think first: a text between two marks, then the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/grammar.h"
#include "specdec/vocabulary_texts.h"

namespace specdec {

class ByteAutomaton;

// The texts around a model's reasoning.
struct ReasoningMarks {
  // Any of them begins it, as the first text of the answer.
  std::vector<std::string> begin;
  // Any of them ends it. The first one is what a spent budget writes.
  std::vector<std::string> end;
  // What may stand between the end and the answer, in full or in part.
  std::string gap;
};

// The marks in the tokens of one vocabulary. Threads may share it.
class Reasoning {
 public:
  // Throws InvalidArgument("reasoning") for marks without an end, an empty mark, and an end that
  // the vocabulary cannot spell.
  Reasoning(std::shared_ptr<const VocabularyTexts> texts, ReasoningMarks marks);

  const VocabularyTexts& texts() const { return *texts_; }
  const ReasoningMarks& marks() const { return marks_; }
  const ByteAutomaton& ends() const { return *ends_; }
  // Tokens that may stand within the reasoning where an answer's grammar waits, by the state of
  // `ends`: those that do not end it in the middle of a token. Bits as in
  // GrammarMatcher::fill_mask.
  const std::vector<uint32_t>& inside(int32_t state) const {
    return inside_[static_cast<size_t>(state)];
  }
  // The longest token that begins `text`; -1 where there is none.
  int32_t longest_token(std::string_view text) const;

 private:
  std::shared_ptr<const VocabularyTexts> texts_;
  ReasoningMarks marks_;
  std::shared_ptr<const ByteAutomaton> ends_;
  std::vector<std::vector<uint32_t>> inside_;
};

enum class ReasoningStart {
  kOptional,  // the answer may begin with a mark, or without reasoning
  kBegun,     // the prompt ends within the reasoning
};

// Reasoning, then what `answer` allows; null: any text. `budget` is the most tokens between the
// marks, -1: any number; after them, the end is the only text that may follow. With an `answer`,
// the text ends in the answer alone. Throws InvalidArgument("reasoning") where the two are for
// vocabularies of different sizes.
std::shared_ptr<const Grammar> after_reasoning(std::shared_ptr<const Reasoning> reasoning,
                                               ReasoningStart start, int budget,
                                               std::shared_ptr<const Grammar> answer = nullptr);

}  // namespace specdec
