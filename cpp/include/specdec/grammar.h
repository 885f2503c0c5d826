// What a request's text must look like, as the engine sees grammars: whoever compiles one stands
// behind these two classes. LlGuidance (llguidance.h) and BadWords (bad_words.h) do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace specdec {

// How far one completion has come in a grammar. One thread at a time uses it, now this one and now
// that, while other threads use the matchers of other completions. A library that gives up (a
// limit, a fault of its own) throws Error, which ends the completion's request.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Sets bit t % 32 of word t / 32 where token t may come next, and clears the others,
  // [ceil(vocab_size / 32)]. Where the text is complete the end tokens are among them; where
  // nothing else may follow they are alone.
  // The mask is a function of the tokens gone past alone.
  virtual void fill_mask(std::span<uint32_t> mask) = 0;
  // Goes past a token. Throws Error where the grammar forbids the token.
  virtual void advance(int32_t token) = 0;
  // An independent matcher at the same place.
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
  // Token ids it was compiled for: those of the model.
  virtual int vocab_size() const = 0;
  // Tokens that end the text. Without any the text may end anywhere, and the request says how.
  virtual std::span<const int32_t> end_token_ids() const = 0;
};

}  // namespace specdec
