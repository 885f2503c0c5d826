#include "speculation/draft_pause.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace specdec {
namespace {

using Reason = DraftRefusal::Reason;

constexpr DraftRefusal kRefusal = {
    .reason = Reason::kTooCostly, .acceptance = 0.125, .step_factor = 1.5};

// Records steps until one changes something; returns what is said then, nothing after `limit`
// steps.
std::optional<std::string> record(DraftPause& pause, const std::optional<DraftRefusal>& refusal,
                                  int limit) {
  for (int i = 0; i < limit; ++i) {
    if (pause.record(refusal)) return pause.sentence();
  }
  return std::nullopt;
}

TEST(DraftPause, RefusedStepsPauseOnceAndSayWhy) {
  DraftPause pause;
  EXPECT_FALSE(record(pause, kRefusal, 64).has_value());
  const auto sentence = record(pause, kRefusal, 64);
  ASSERT_TRUE(sentence.has_value());
  EXPECT_NE(sentence->find("1.50 times as long"), std::string::npos) << *sentence;
  EXPECT_NE(sentence->find("probability 0.12"), std::string::npos) << *sentence;
  EXPECT_TRUE(pause.is_paused());
  EXPECT_EQ(pause.num_pauses(Reason::kTooCostly), 1);
  EXPECT_EQ(pause.num_pauses(Reason::kNoCredit), 0);
  EXPECT_FALSE(record(pause, kRefusal, 1000).has_value());
}

TEST(DraftPause, StepsWithDraftsResume) {
  DraftPause pause;
  record(pause, kRefusal, 200);
  const auto sentence = record(pause, std::nullopt, 64);
  ASSERT_TRUE(sentence.has_value());
  EXPECT_NE(sentence->find("resumed"), std::string::npos) << *sentence;
  EXPECT_FALSE(pause.is_paused());
}

TEST(DraftPause, ProbesDoNotResumeAndRareRefusalsDoNotPause) {
  DraftPause pause;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(pause.record(i % 4 == 0 ? std::optional(kRefusal) : std::nullopt));
  }
  record(pause, kRefusal, 200);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(pause.record(i % 16 == 0 ? std::nullopt : std::optional(kRefusal)));
  }
  EXPECT_TRUE(pause.is_paused());
}

}  // namespace
}  // namespace specdec
