#include "specdec/reasoning.h"

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

const Texts kVocabulary = {"</s>", "a",     "b",   "<",  "/",    "t>",     ">", "</", "<t>", "</t>",
                           "</t",  "</t>a", "x\n", "\n", "\n\n", "</t>\n", " ", "<t", "ab",  "t"};
constexpr int32_t kEnd = 0;

int32_t token_of(const std::string& text) {
  return static_cast<int32_t>(std::ranges::find(kVocabulary, text) - kVocabulary.begin());
}

std::shared_ptr<const Reasoning> make(ReasoningMarks marks = {{"<t>"}, {"</t>"}, "\n\n"}) {
  return std::make_shared<Reasoning>(std::make_shared<VocabularyTexts>(kVocabulary),
                                     std::move(marks));
}

// Allows the texts of one token each, "a" or "b", and then the end.
class OneLetter final : public Grammar {
 public:
  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    return std::make_unique<Matcher>();
  }
  int vocab_size() const override { return static_cast<int>(kVocabulary.size()); }
  std::span<const int32_t> end_token_ids() const override { return ends_; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    void fill_mask(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0u);
      if (has_letter_) {
        mask[0] |= 1u << kEnd;
      } else {
        mask[0] |= 1u << token_of("a") | 1u << token_of("b");
      }
    }
    void advance(int32_t token) override {
      const bool is_letter = token == token_of("a") || token == token_of("b");
      if (has_letter_ ? token != kEnd : !is_letter) throw Error("not a letter");
      has_letter_ = true;
    }
    std::unique_ptr<GrammarMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    std::vector<int32_t> forced_tokens() override {
      return has_letter_ ? std::vector<int32_t>{kEnd} : std::vector<int32_t>();
    }

   private:
    bool has_letter_ = false;
  };

  std::vector<int32_t> ends_ = {kEnd};
};

Texts allowed_by(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask((kVocabulary.size() + 31) / 32);
  matcher.fill_mask(mask);
  Texts allowed;
  for (size_t i = 0; i < kVocabulary.size(); ++i) {
    if (is_in(mask, static_cast<int32_t>(i))) allowed.push_back(kVocabulary[i]);
  }
  return allowed;
}

Texts sorted(Texts texts) {
  std::ranges::sort(texts);
  return texts;
}

void write(GrammarMatcher& matcher, const Texts& tokens) {
  for (const std::string& token : tokens) matcher.advance(token_of(token));
}

// Draws tokens that the mask allows until the end token. What is drawn is read by string search, as
// a user would read the answer.
TEST(Reasoning, TheAnswersGrammarHoldsFromTheEndOfTheReasoning) {
  std::mt19937 random{5};
  int num_with_reasoning = 0;
  for (const ReasoningStart start : {ReasoningStart::kOptional, ReasoningStart::kBegun}) {
    for (int round = 0; round < 3000; ++round) {
      const int budget = static_cast<int>(random() % 8) - 1;
      const auto grammar = after_reasoning(make(), start, budget, std::make_shared<OneLetter>());
      auto matcher = grammar->make_matcher();
      std::string text = start == ReasoningStart::kBegun ? "<t>" : "";
      int num_inside = 0;
      bool was_inside = false;
      for (int step = 0; step < 400; ++step) {
        const bool is_inside = text.starts_with("<t>") && text.find("</t>") == std::string::npos;
        was_inside |= is_inside;
        Texts allowed = allowed_by(*matcher);
        ASSERT_FALSE(allowed.empty()) << text;
        const std::vector<int32_t> forced = matcher->forced_tokens();
        if (!forced.empty()) {
          EXPECT_EQ(allowed, Texts{kVocabulary[forced[0]]}) << text;
        }
        const std::string token = allowed[random() % allowed.size()];
        matcher->advance(token_of(token));
        if (round % 2 == 0) matcher = matcher->clone();
        text += token;
        if (is_inside && text.find("</t>") == std::string::npos) ++num_inside;
        if (token_of(token) == kEnd) break;
      }
      if (budget < 0 && !text.ends_with("</s>")) continue;  // still thinking
      ASSERT_TRUE(text.ends_with("</s>")) << text;
      num_with_reasoning += was_inside ? 1 : 0;
      std::string answer = text.substr(0, text.size() - 4);
      if (was_inside) answer = answer.substr(answer.find("</t>") + 4);
      // At most the gap, in order, before the letter.
      for (int i = 0; i < 2 && answer.starts_with("\n"); ++i) answer = answer.substr(1);
      EXPECT_TRUE(answer == "a" || answer == "b") << text;
      // The tokens of the forced end, one for each of its bytes at most, are not thoughts.
      if (budget >= 0) {
        EXPECT_LE(num_inside, budget + 4) << text;
      }
    }
  }
  EXPECT_GT(num_with_reasoning, 3000);
}

TEST(Reasoning, ABudgetIsExact) {
  for (int budget = 0; budget < 5; ++budget) {
    const auto grammar = after_reasoning(make(), ReasoningStart::kBegun, budget);
    auto matcher = grammar->make_matcher();
    for (int i = 0; i < budget; ++i) {
      EXPECT_EQ(allowed_by(*matcher).size(), kVocabulary.size());
      EXPECT_TRUE(matcher->forced_tokens().empty());
      matcher->advance(token_of("a"));
    }
    EXPECT_EQ(allowed_by(*matcher), Texts{"</t>"});
    EXPECT_EQ(matcher->forced_tokens(), std::vector<int32_t>{token_of("</t>")});
    EXPECT_THROW(matcher->clone()->advance(token_of("a")), Error);
    matcher->advance(token_of("</t>"));
    EXPECT_EQ(allowed_by(*matcher).size(), kVocabulary.size());
  }
}

TEST(Reasoning, AnEndThatHasBegunIsFinished) {
  const auto grammar = after_reasoning(make(), ReasoningStart::kBegun, 2);
  auto matcher = grammar->make_matcher();
  write(*matcher, {"a", "</"});
  EXPECT_EQ(matcher->forced_tokens(), std::vector<int32_t>{token_of("t>")});
  write(*matcher, {"t>"});
  EXPECT_EQ(allowed_by(*matcher).size(), kVocabulary.size());
}

TEST(Reasoning, OnlyWhatMayBeginEitherIsAllowedAtFirst) {
  const auto answer = std::make_shared<OneLetter>();
  const auto grammar = after_reasoning(make(), ReasoningStart::kOptional, -1, answer);
  EXPECT_EQ(sorted(allowed_by(*grammar->make_matcher())), sorted({"<", "<t", "<t>", "a", "b"}));
  auto matcher = grammar->make_matcher();
  write(*matcher, {"<"});
  EXPECT_EQ(sorted(allowed_by(*matcher)), sorted({"t", "t>"}));
  EXPECT_THROW(matcher->advance(token_of("a")), Error);
  matcher = grammar->make_matcher();
  write(*matcher, {"b"});
  EXPECT_EQ(allowed_by(*matcher), Texts{"</s>"});
}

TEST(Reasoning, TokensThatRunIntoTheAnswerAreForbiddenBeforeAGrammarAlone) {
  const auto answer = std::make_shared<OneLetter>();
  const auto strict = after_reasoning(make(), ReasoningStart::kBegun, -1, answer);
  const Texts allowed = allowed_by(*strict->make_matcher());
  EXPECT_EQ(std::ranges::count(allowed, "</t>a"), 0);
  EXPECT_EQ(std::ranges::count(allowed, "</t>\n"), 1);
  EXPECT_EQ(std::ranges::count(allowed, "</s>"), 0);
  auto matcher = strict->make_matcher();
  write(*matcher, {"</t>\n"});
  EXPECT_EQ(sorted(allowed_by(*matcher)), sorted({"\n", "a", "b"}));
  const auto free = after_reasoning(make(), ReasoningStart::kBegun, 9);
  matcher = free->make_matcher();
  write(*matcher, {"</t>a", "</s>"});
}

TEST(Reasoning, AnyOfSeveralMarksBeginsAndEndsIt) {
  const auto marks = ReasoningMarks{{"<t>", "ab"}, {"</t>", "b/"}, ""};
  const auto answer = std::make_shared<OneLetter>();
  for (const Texts& reasoning : {Texts{"ab", "<", "a", "b", "/"}, Texts{"<t", ">", "</t", ">"}}) {
    const auto grammar = after_reasoning(make(marks), ReasoningStart::kOptional, -1, answer);
    auto matcher = grammar->make_matcher();
    write(*matcher, reasoning);
    EXPECT_EQ(sorted(allowed_by(*matcher)), sorted({"a", "b"}));
  }
}

TEST(Reasoning, BadMarksAreRefused) {
  EXPECT_THROW(make({{"<t>"}, {}, ""}), InvalidArgument);
  EXPECT_THROW(make({{""}, {"</t>"}, ""}), InvalidArgument);
  EXPECT_THROW(make({{"<t>"}, {"$"}, ""}), InvalidArgument);
}

}  // namespace
}  // namespace specdec
