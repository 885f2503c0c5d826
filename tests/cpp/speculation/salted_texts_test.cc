#include "speculation/salted_texts.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <string>
#include <string_view>

#include "speculation/prompt_answers.h"
#include "speculation/suffix_drafter.h"

namespace specdec {
namespace {

// Texts that are nothing but their lengths.
struct Lengths {
  std::deque<int> lengths;
  int num_texts() const { return static_cast<int>(lengths.size()); }
  int64_t used_bytes() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t memory_bytes() const { return used_bytes(); }
  void evict_oldest() { lengths.pop_front(); }
};
using Salted = SaltedTexts<Lengths>;

void add(Salted& texts, std::string_view salt, int length) {
  texts.add(salt, [] { return Lengths(); }, [&](Lengths& of) { of.lengths.push_back(length); });
}

std::deque<int> lengths_of(const Salted& texts, std::string_view salt) {
  const Lengths* found = texts.find(salt);
  return found == nullptr ? std::deque<int>{} : found->lengths;
}

TEST(SaltedTexts, OneSaltLosesItsOldestTexts) {
  Salted texts(3, 1 << 20);
  for (int i = 1; i <= 5; ++i) add(texts, "a", i);
  EXPECT_EQ(lengths_of(texts, "a"), (std::deque<int>{3, 4, 5}));
  EXPECT_EQ(texts.num_texts(), 3);
}

TEST(SaltedTexts, AnEagerSaltTakesNothingFromOthers) {
  constexpr int64_t kBytes = 3 * Salted::kTextsBytes + 100;
  Salted texts(1000, kBytes);
  add(texts, "quiet", 30);
  add(texts, "", 20);
  for (int i = 0; i < 100; ++i) add(texts, "eager", 10);
  EXPECT_EQ(lengths_of(texts, "quiet"), std::deque<int>{30});
  EXPECT_EQ(lengths_of(texts, ""), std::deque<int>{20});
  EXPECT_EQ(lengths_of(texts, "eager"), std::deque<int>(5, 10));
  // The quiet one may grow up to its share, at the cost of the eager one.
  add(texts, "quiet", 10);
  EXPECT_EQ(lengths_of(texts, "quiet"), (std::deque<int>{30, 10}));
  EXPECT_EQ(lengths_of(texts, "eager"), std::deque<int>(4, 10));
}

TEST(SaltedTexts, TheNumberOfTextsIsSharedFairly) {
  Salted texts(6, 1 << 30);
  add(texts, "quiet", 1000);
  for (int i = 1; i <= 50; ++i) add(texts, "eager", i);
  EXPECT_EQ(lengths_of(texts, "quiet"), std::deque<int>{1000});
  EXPECT_EQ(lengths_of(texts, "eager"), (std::deque<int>{46, 47, 48, 49, 50}));
}

TEST(SaltedTexts, OfEqualSaltsTheLeastRecentGoes) {
  Salted texts(3, 1 << 30);
  for (const char* salt : {"b", "a", "c", "d", "e"}) add(texts, salt, 1);
  EXPECT_EQ(texts.find("b"), nullptr);
  EXPECT_EQ(texts.find("a"), nullptr);
  for (const char* salt : {"c", "d", "e"}) EXPECT_NE(texts.find(salt), nullptr) << salt;
}

TEST(SaltedTexts, ManySaltsStayWithinTheBound) {
  constexpr int64_t kLimit = 40 * Salted::kTextsBytes;
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  SuffixDrafter drafter(config, 0, 100, nullptr, kLimit);
  for (uint64_t i = 0; i < 200; ++i) {
    drafter.finish({i, std::vector<int32_t>{1, 2, 3}, 0, std::to_string(i)});
    ASSERT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  }
  EXPECT_GT(drafter.num_shared(), 10);
}

using Tokens = PromptAnswers::Tokens;

TEST(PromptAnswers, JoinsAPromptsAnswersNewestFirstAndEachOnce) {
  PromptAnswers answers;
  EXPECT_EQ(answers.find(1), nullptr);
  answers.add(1, Tokens{10, 11});
  answers.add(2, Tokens{20});
  answers.add(1, {});
  const auto before = answers.find(1);
  answers.add(1, Tokens{12});
  answers.add(1, Tokens{13, 14});
  EXPECT_EQ(*answers.find(1), (Tokens{13, 14, 12, 10, 11}));
  EXPECT_EQ(*before, (Tokens{10, 11}));  // of a sequence that drafts from it
  answers.add(1, Tokens{12});
  EXPECT_EQ(*answers.find(1), (Tokens{12, 13, 14, 10, 11}));
  EXPECT_EQ(*answers.find(2), Tokens{20});
}

TEST(PromptAnswers, KeepsTheNewestOfAPromptAndForgetsPromptsInTurn) {
  PromptAnswers answers;
  for (int32_t i = 0; i < 2 * PromptAnswers::kMostAnswers; ++i) answers.add(1, Tokens{i});
  EXPECT_EQ(answers.find(1)->size(), static_cast<size_t>(PromptAnswers::kMostAnswers));
  EXPECT_EQ(answers.find(1)->front(), 2 * PromptAnswers::kMostAnswers - 1);
  answers.add(2, Tokens(PromptAnswers::kMostTokens, 5));
  answers.add(2, Tokens{6});
  EXPECT_EQ(*answers.find(2), Tokens{6});
  answers.add(1, Tokens{0});
  EXPECT_EQ(answers.num_texts(), 2);
  answers.evict_oldest();
  EXPECT_EQ(answers.find(2), nullptr);
  answers.evict_oldest();
  EXPECT_EQ(answers.used_bytes(), 0);
}

}  // namespace
}  // namespace specdec
