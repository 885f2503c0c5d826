#include "sched/sequence.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kBlockSize = 4;
constexpr int kMaxModelLen = 16;

std::optional<int32_t> stop_token_id(const Sequence& sequence) {
  return std::get<Finished>(sequence.state).stop_token_id;
}

TEST(SequenceTest, KeepsPromptAndOutputApart) {
  SamplingParams params;
  Sequence sequence(3, {1, 2, 3}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(7), FinishReason::kNone);
  EXPECT_EQ(sequence.append(8), FinishReason::kNone);
  EXPECT_EQ(sequence.num_tokens(), 5);
  EXPECT_EQ(sequence.num_output_tokens(), 2);
  EXPECT_EQ(std::vector<int32_t>(sequence.prompt().begin(), sequence.prompt().end()),
            (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(std::vector<int32_t>(sequence.output().begin(), sequence.output().end()),
            (std::vector<int32_t>{7, 8}));
}

TEST(SequenceTest, MaxTokensEndsWithLength) {
  SamplingParams params;
  params.max_tokens = 2;
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.max_num_tokens(), 3);
  EXPECT_EQ(sequence.append(7), FinishReason::kNone);
  EXPECT_EQ(sequence.append(7), FinishReason::kLength);
  EXPECT_TRUE(sequence.is_finished());
  EXPECT_EQ(stop_token_id(sequence), std::nullopt);
}

TEST(SequenceTest, MaxModelLenEndsWithLengthWhateverMaxTokensSays) {
  for (const int max_tokens : {0, 16, std::numeric_limits<int>::max()}) {
    SamplingParams params;
    params.max_tokens = max_tokens;
    params.min_tokens = max_tokens;  // not even that overrides the model's limit
    Sequence sequence(0, std::vector<int32_t>(kMaxModelLen - 2, 1), params, kBlockSize,
                      kMaxModelLen);
    EXPECT_EQ(sequence.max_num_tokens(), kMaxModelLen);
    EXPECT_EQ(sequence.append(7), FinishReason::kNone);
    EXPECT_EQ(sequence.append(7), FinishReason::kLength);
  }
}

TEST(SequenceTest, EosStopsWithoutAStopTokenId) {
  SamplingParams params;
  params.eos_token_ids = {50, 51};
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(7), FinishReason::kNone);
  EXPECT_EQ(sequence.append(51), FinishReason::kStop);
  EXPECT_EQ(stop_token_id(sequence), std::nullopt);
  EXPECT_EQ(sequence.tokens().back(), 51);  // stays in the tokens
}

TEST(SequenceTest, StopTokenIsReported) {
  SamplingParams params;
  params.stop_token_ids = {40, 41};
  Sequence sequence(0, {41}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(41), FinishReason::kStop);
  EXPECT_EQ(stop_token_id(sequence), 41);
}

TEST(SequenceTest, IgnoreEosLeavesStopTokensInForce) {
  SamplingParams params;
  params.eos_token_ids = {50};
  params.stop_token_ids = {40};
  params.ignore_eos = true;
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(50), FinishReason::kNone);
  EXPECT_EQ(sequence.append(40), FinishReason::kStop);
}

TEST(SequenceTest, TokenThatIsEosAndStopTokenCountsAsWhatIsInForce) {
  SamplingParams params;
  params.eos_token_ids = {50};
  params.stop_token_ids = {50};
  Sequence as_eos(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(as_eos.append(50), FinishReason::kStop);
  EXPECT_EQ(stop_token_id(as_eos), std::nullopt);
  SamplingParams ignoring = params;
  ignoring.ignore_eos = true;
  Sequence as_stop_token(1, {1}, ignoring, kBlockSize, kMaxModelLen);
  EXPECT_EQ(as_stop_token.append(50), FinishReason::kStop);
  EXPECT_EQ(stop_token_id(as_stop_token), 50);
}

TEST(SequenceTest, NothingStopsBeforeMinTokens) {
  SamplingParams params;
  params.eos_token_ids = {50};
  params.stop_token_ids = {40};
  params.min_tokens = 3;
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(50), FinishReason::kNone);
  EXPECT_EQ(sequence.append(40), FinishReason::kNone);
  EXPECT_EQ(sequence.append(40), FinishReason::kStop);
}

TEST(SequenceTest, StopTokenAtTheLastPositionCountsAsStop) {
  SamplingParams params;
  params.stop_token_ids = {40};
  params.max_tokens = 2;
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  EXPECT_EQ(sequence.append(7), FinishReason::kNone);
  EXPECT_EQ(sequence.append(40), FinishReason::kStop);
}

TEST(SequenceTest, RefusesMisuse) {
  SamplingParams params;
  params.max_tokens = 1;
  EXPECT_THROW(Sequence(0, {}, params, kBlockSize, kMaxModelLen), InternalError);
  EXPECT_THROW(Sequence(0, {1, 2}, params, kBlockSize, 2), InternalError);
  Sequence sequence(0, {1}, params, kBlockSize, kMaxModelLen);
  sequence.append(7);
  EXPECT_THROW(sequence.append(7), InternalError);
  EXPECT_EQ(sequence.num_tokens(), 2);
}

}  // namespace
}  // namespace specdec
