// A grammar whose rule is a function of the tokens so far.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "specdec/grammar.h"

namespace specdec::testing {

class ToyGrammar final : public Grammar {
 public:
  using Tokens = std::vector<int32_t>;
  // Which tokens may follow; at least one.
  using Rule = std::function<Tokens(const Tokens& before)>;

  ToyGrammar(int vocab_size, int32_t end_token, Rule rule)
      : vocab_size_(vocab_size), ends_{end_token}, rule_(std::move(rule)) {}

  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    return std::make_unique<Matcher>(*this);
  }
  int vocab_size() const override { return vocab_size_; }
  std::span<const int32_t> end_token_ids() const override { return ends_; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(const ToyGrammar& grammar) : grammar_(grammar) {}

    void fill_mask(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0u);
      for (const int32_t token : grammar_.rule_(tokens_)) mask[token / 32] |= 1u << (token % 32);
    }
    void advance(int32_t token) override {
      const Tokens allowed = grammar_.rule_(tokens_);
      if (std::ranges::find(allowed, token) == allowed.end()) {
        throw Error(str_cat("the grammar forbids token ", token));
      }
      tokens_.push_back(token);
    }
    std::unique_ptr<GrammarMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    std::vector<int32_t> forced_tokens() override {
      Tokens after = tokens_;
      while (after.size() < tokens_.size() + 8) {
        const Tokens allowed = grammar_.rule_(after);
        if (allowed.size() != 1) break;
        after.push_back(allowed.front());
        if (after.back() == grammar_.ends_.front()) break;
      }
      return {after.begin() + tokens_.size(), after.end()};
    }

   private:
    const ToyGrammar& grammar_;
    Tokens tokens_;
  };

  int vocab_size_;
  Tokens ends_;
  Rule rule_;
};

// Two of three positions allow a few tokens that depend on the token before; the third allows one.
// The text may end once it has `min_length` tokens, and must with `max_length`.
inline std::shared_ptr<const Grammar> make_toy_grammar(int vocab_size, int32_t end_token,
                                                       int min_length, int max_length) {
  return std::make_shared<ToyGrammar>(
      vocab_size, end_token, [=](const std::vector<int32_t>& before) {
        const int length = static_cast<int>(before.size());
        std::vector<int32_t> allowed;
        if (length >= max_length || (length > 0 && before.back() == end_token))
          return std::vector{end_token};
        const int last = before.empty() ? 0 : before.back();
        const int count = length % 3 == 2 ? 1 : 2 + last % 5;
        for (int i = 0; i < count; ++i) {
          const int32_t token = (last * 7 + length * 3 + i * 11 + 1) % vocab_size;
          if (token != end_token) allowed.push_back(token);
        }
        if (length >= min_length && length % 3 != 2) allowed.push_back(end_token);
        if (allowed.empty()) allowed.push_back((end_token + 1) % vocab_size);
        std::ranges::sort(allowed);
        allowed.erase(std::ranges::unique(allowed).begin(), allowed.end());
        return allowed;
      });
}

}  // namespace specdec::testing
