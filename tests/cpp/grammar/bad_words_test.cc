#include "specdec/bad_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/token_mask.h"
#include "specdec/error.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

using Texts = std::vector<std::string>;

std::shared_ptr<const Grammar> free_of(const Texts& words, const Texts& vocabulary,
                                       std::shared_ptr<const Grammar> grammar = nullptr) {
  return without(std::make_shared<BadWords>(std::make_shared<VocabularyTexts>(vocabulary), words),
                 std::move(grammar));
}

std::vector<bool> allowed_by(GrammarMatcher& matcher, size_t vocab_size) {
  std::vector<uint32_t> mask((vocab_size + 31) / 32);
  matcher.fill_mask(mask);
  std::vector<bool> allowed;
  for (size_t i = 0; i < vocab_size; ++i) allowed.push_back(is_in(mask, static_cast<int32_t>(i)));
  return allowed;
}

// A text of up to `longest` of the letters, among them bytes above 127.
std::string random_text(std::mt19937& random, int longest) {
  constexpr std::string_view kLetters = "ab\xc3";
  std::string text;
  for (int length = static_cast<int>(random() % (longest + 1)); length > 0; --length) {
    text += kLetters[random() % kLetters.size()];
  }
  return text;
}

TEST(BadWords, ATokenIsAllowedWhereTheTextWithItHasNoBadWord) {
  std::mt19937 random{11};
  int num_forbidden = 0;
  for (int round = 0; round < 300; ++round) {
    Texts vocabulary = {"", "a", "b", "\xc3"};
    while (vocabulary.size() < 40) vocabulary.push_back(random_text(random, 5));
    Texts words;
    while (words.size() < 1 + random() % 4) words.push_back("a" + random_text(random, 5));
    const auto grammar = free_of(words, vocabulary);
    auto matcher = grammar->make_matcher();
    std::string text;
    for (int step = 0; step < 30; ++step) {
      const std::vector<bool> allowed = allowed_by(*matcher, vocabulary.size());
      std::vector<int32_t> choices;
      for (size_t token = 0; token < vocabulary.size(); ++token) {
        const std::string next = text + vocabulary[token];
        const bool is_good = std::ranges::none_of(
            words, [&](const std::string& word) { return next.find(word) != std::string::npos; });
        ASSERT_EQ(allowed[token], is_good) << "round " << round << ", token " << token;
        if (is_good) choices.push_back(static_cast<int32_t>(token));
        num_forbidden += is_good ? 0 : 1;
      }
      const int32_t token = choices[random() % choices.size()];
      if (step % 3 == 0) matcher = matcher->clone();
      matcher->advance(token);
      text += vocabulary[token];
    }
  }
  EXPECT_GT(num_forbidden, 10000);
}

TEST(BadWords, GoingPastABadWordIsAnError) {
  const auto grammar = free_of({"bad"}, {"b", "ad", "a"});
  const auto matcher = grammar->make_matcher();
  matcher->advance(0);
  EXPECT_THROW(matcher->advance(1), Error);
}

TEST(BadWords, AGrammarsTokensAreThoseOfBoth) {
  const Texts vocabulary = {"a", "b", "c", "end"};
  const auto inner =
      std::make_shared<testing::ToyGrammar>(4, 3, [](const auto& before) -> std::vector<int32_t> {
        if (before.size() == 1) return {1};
        return {0, 1, 3};
      });
  const auto grammar = free_of({"abb"}, vocabulary, inner);
  EXPECT_EQ(grammar->end_token_ids().front(), 3);
  const auto matcher = grammar->make_matcher();
  EXPECT_EQ(allowed_by(*matcher, 4), (std::vector{true, true, false, true}));
  matcher->advance(0);
  EXPECT_EQ(matcher->forced_tokens(), std::vector<int32_t>{1});
  matcher->advance(1);
  EXPECT_EQ(allowed_by(*matcher, 4), (std::vector{true, false, false, true}));
  EXPECT_TRUE(free_of({"abb"}, vocabulary)->end_token_ids().empty());
}

TEST(BadWords, WordsThatCannotBeKeptOutAreRefused) {
  const Texts vocabulary = {"a", "ba"};
  EXPECT_NO_THROW(free_of({"ab"}, vocabulary));
  EXPECT_THROW(free_of({"ab", ""}, vocabulary), InvalidArgument);
  EXPECT_THROW(free_of({"a"}, vocabulary), InvalidArgument);
  const auto other = std::make_shared<testing::ToyGrammar>(
      3, 2, [](const auto&) { return std::vector<int32_t>{0}; });
  EXPECT_THROW(free_of({"ab"}, vocabulary, other), InvalidArgument);
}

}  // namespace
}  // namespace specdec
