#include "specdec/bad_words.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "core/str_cat.h"
#include "grammar/byte_automaton.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr BadWords::State kCompleted = -1;

void take_out(int32_t token, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

class WatchedMatcher final : public GrammarMatcher {
 public:
  WatchedMatcher(const BadWords& words, BadWords::State state,
                 std::unique_ptr<GrammarMatcher> matcher)
      : words_(words), state_(state), matcher_(std::move(matcher)) {}

  void fill_mask(std::span<uint32_t> mask) override {
    if (matcher_ != nullptr) {
      matcher_->fill_mask(mask);
    } else {
      std::ranges::fill(mask, ~0u);
    }
    words_.forbid(state_, mask);
  }
  void advance(int32_t token) override {
    if (matcher_ != nullptr) matcher_->advance(token);
    state_ = words_.advance(state_, token);
  }
  std::unique_ptr<GrammarMatcher> clone() const override {
    return std::make_unique<WatchedMatcher>(words_, state_,
                                            matcher_ == nullptr ? nullptr : matcher_->clone());
  }
  std::vector<int32_t> forced_tokens() override {
    return matcher_ == nullptr ? std::vector<int32_t>() : matcher_->forced_tokens();
  }

 private:
  const BadWords& words_;
  BadWords::State state_;
  std::unique_ptr<GrammarMatcher> matcher_;  // null: any text
};

class WatchedGrammar final : public Grammar {
 public:
  WatchedGrammar(std::shared_ptr<const BadWords> words, std::shared_ptr<const Grammar> grammar)
      : words_(std::move(words)), grammar_(std::move(grammar)) {}

  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    return std::make_unique<WatchedMatcher>(
        *words_, 0, grammar_ == nullptr ? nullptr : grammar_->make_matcher());
  }
  int vocab_size() const override { return words_->texts().size(); }
  std::span<const int32_t> end_token_ids() const override {
    return grammar_ == nullptr ? std::span<const int32_t>() : grammar_->end_token_ids();
  }

 private:
  std::shared_ptr<const BadWords> words_;
  std::shared_ptr<const Grammar> grammar_;
};

}  // namespace

BadWords::BadWords(std::shared_ptr<const VocabularyTexts> texts, std::span<const std::string> words)
    : texts_(std::move(texts)) {
  if (std::ranges::any_of(words, &std::string::empty)) {
    throw InvalidArgument("bad_words", "must not hold an empty text");
  }
  automaton_ = std::make_shared<const ByteAutomaton>(words);
  const int num_tokens = texts_->size();
  allowed_at_start_.resize((static_cast<size_t>(num_tokens) + 31) / 32);
  bool leaves_any = false;
  for (int32_t token = 0; token < num_tokens; ++token) {
    if (walk(0, (*texts_)[token]) == kCompleted) continue;
    allowed_at_start_[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    leaves_any = true;
  }
  if (!leaves_any) {
    throw InvalidArgument("bad_words", "must leave at least one token of the vocabulary");
  }
}

BadWords::State BadWords::walk(State state, std::string_view text) const {
  for (const char byte : text) {
    state = automaton_->step(state, static_cast<uint8_t>(byte));
    if (automaton_->node(state).ends_text) return kCompleted;
  }
  return state;
}

BadWords::State BadWords::advance(State state, int32_t token) const {
  const State next = walk(state, (*texts_)[token]);
  if (next == kCompleted) throw Error(str_cat("token ", token, " completes one of bad_words"));
  return next;
}

void BadWords::forbid(State state, std::span<uint32_t> mask) const {
  for (size_t word = 0; word < mask.size(); ++word) mask[word] &= allowed_at_start_[word];
  forbid_rest(state, texts_->in_order(), 0, mask);
}

// Goes on only while the text is on the way to a word that began before the token: words within a
// token are known from the start.
void BadWords::forbid_rest(State state, std::span<const int32_t> tokens, int length,
                           std::span<uint32_t> mask) const {
  const auto next_byte = [&](int32_t token) {
    const std::string_view text = (*texts_)[token];
    return text.size() > static_cast<size_t>(length) ? static_cast<uint8_t>(text[length]) : -1;
  };
  std::bitset<256> seen;
  for (State from = state; automaton_->node(from).depth > length;
       from = automaton_->node(from).fallback) {
    for (const auto& [byte, next] : automaton_->node(from).children) {
      if (seen[byte]) continue;  // a longer text leads on
      seen.set(byte);
      const auto [begin, end] = std::ranges::equal_range(tokens, int{byte}, {}, next_byte);
      if (begin == end) continue;
      if (automaton_->node(next).ends_text) {
        std::for_each(begin, end, [&](int32_t token) { take_out(token, mask); });
      } else {
        forbid_rest(next, {begin, end}, length + 1, mask);
      }
    }
  }
}

std::shared_ptr<const Grammar> without(std::shared_ptr<const BadWords> words,
                                       std::shared_ptr<const Grammar> grammar) {
  if (grammar != nullptr && grammar->vocab_size() != words->texts().size()) {
    throw InvalidArgument("bad_words",
                          str_cat("is for a vocabulary of ", words->texts().size(),
                                  " tokens, the grammar for one of ", grammar->vocab_size()));
  }
  return std::make_shared<WatchedGrammar>(std::move(words), std::move(grammar));
}

}  // namespace specdec
