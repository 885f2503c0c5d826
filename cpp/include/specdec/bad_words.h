// Texts that an answer never contains, whichever tokens would spell them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/grammar.h"
#include "specdec/vocabulary_texts.h"

namespace specdec {

class ByteAutomaton;

// The words, and the tokens that contain a bad word by themselves. Threads may share it.
class BadWords {
 public:
  // Throws InvalidArgument("bad_words") for an empty word, and where no token remains.
  BadWords(std::shared_ptr<const VocabularyTexts> texts, std::span<const std::string> words);

  // How much of which word the text ends with; 0 at the beginning of a text.
  using State = int32_t;
  // After one more token. Throws Error where the token completes a word.
  State advance(State state, int32_t token) const;
  // Takes the tokens out of `mask` that would complete a word.
  void forbid(State state, std::span<uint32_t> mask) const;

  const VocabularyTexts& texts() const { return *texts_; }

 private:
  // The state after the text; -1 where the text completes a word.
  State walk(State state, std::string_view text) const;
  // Forbids the bad ones among tokens that share their first `length` bytes, which led to `state`.
  void forbid_rest(State state, std::span<const int32_t> tokens, int length,
                   std::span<uint32_t> mask) const;

  std::shared_ptr<const VocabularyTexts> texts_;
  std::shared_ptr<const ByteAutomaton> automaton_;  // of the words
  std::vector<uint32_t> allowed_at_start_;          // a mask
};

// The texts that `grammar` allows, without the bad words; null: any text, which may end anywhere.
// Throws InvalidArgument("bad_words") where the two are for vocabularies of different sizes.
std::shared_ptr<const Grammar> without(std::shared_ptr<const BadWords> words,
                                       std::shared_ptr<const Grammar> grammar = nullptr);

}  // namespace specdec
