// The interface between the engine and grammars, which constrain a request's text. Grammar
// compilers implement these two classes: LlGuidance (llguidance.h) and BadWords (bad_words.h) do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace specdec {

// The state of one completion in a grammar. Used by one thread at a time, but not always the same
// one, while other threads use the matchers of other completions. A library that gives up (a limit,
// a fault of its own) throws Error, which ends the completion's request.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Sets bit t % 32 of word t / 32 where token t may come next and clears the other bits,
  // [ceil(vocab_size / 32)] words. Where the text is complete, the end tokens are allowed; where
  // nothing else may follow, only they are. The mask depends only on the tokens that the matcher
  // has advanced past.
  virtual void fill_mask(std::span<uint32_t> mask) = 0;
  // Goes past a token. Throws Error where the grammar forbids the token.
  virtual void advance(int32_t token) = 0;
  // An independent matcher in the same state.
  virtual std::unique_ptr<GrammarMatcher> clone() const = 0;
  // Tokens that spell the text without which the grammar cannot go on, such as the punctuation and
  // the keys of JSON. Empty where the text is free.
  virtual std::vector<int32_t> forced_tokens() = 0;
};

// A compiled grammar. Threads may share it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // At the beginning of the text.
  virtual std::unique_ptr<GrammarMatcher> make_matcher() const = 0;
  // The number of token ids it was compiled for, which must be the model's.
  virtual int vocab_size() const = 0;
  // Tokens that end the text. Without any the text may end anywhere, and the request says how.
  virtual std::span<const int32_t> end_token_ids() const = 0;
};

}  // namespace specdec
