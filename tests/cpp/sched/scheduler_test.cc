#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "specdec/error.h"
#include "testing/scheduler_harness.h"

namespace specdec::testing {
namespace {

std::vector<uint64_t> ordinals_of(const std::vector<Sequence*>& sequences) {
  std::vector<uint64_t> ordinals;
  for (const Sequence* sequence : sequences) ordinals.push_back(sequence->ordinal);
  return ordinals;
}

bool is_decoding(const Sequence& sequence) {
  return std::holds_alternative<Decoding>(sequence.state);
}
bool is_preempted(const Sequence& sequence) {
  return std::holds_alternative<Preempted>(sequence.state);
}

struct Setup {
  int num_blocks = 16;
  int max_num_seqs = 8;
  int max_num_batched_tokens = 32;
  bool enable_prefix_caching = true;
  int max_model_len = 64;
};

// Blocks of 4 tokens.
HarnessOptions options(const Setup& setup) {
  return {.config = {.max_num_seqs = setup.max_num_seqs,
                     .max_num_batched_tokens = setup.max_num_batched_tokens,
                     .block_size = 4,
                     .enable_prefix_caching = setup.enable_prefix_caching},
          .num_blocks = setup.num_blocks,
          .max_model_len = setup.max_model_len};
}

TEST(SchedulerTest, NothingToDoIsAnEmptyPlan) {
  SchedulerHarness harness(options({}));
  EXPECT_TRUE(harness.plan().empty());
  EXPECT_FALSE(harness.scheduler().has_unfinished());
}

TEST(SchedulerTest, PrefillsThenDecodesOneRowAStep) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(5), {.params = with_max_tokens(3)});
  const ExecutionPlan first = harness.step();
  EXPECT_EQ(rows_of(first), (Rows{{0, 5}}));
  EXPECT_EQ(first.num_prompt_rows, 5);
  EXPECT_TRUE(first.sequences[0].samples);
  EXPECT_TRUE(is_decoding(sequence));
  const ExecutionPlan second = harness.step();
  EXPECT_EQ(rows_of(second), (Rows{{0, 1}}));
  EXPECT_EQ(second.num_prompt_rows, 0);
  harness.step();
  EXPECT_EQ(std::get<Finished>(sequence.state).reason, FinishReason::kLength);
  EXPECT_EQ(sequence.num_output_tokens(), 3);
  EXPECT_EQ(sequence.blocks.num_blocks(), 0);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, DecodesComeFirstThenChunksThenAdmissions) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 10}));
  harness.add(prompt_of(4));
  harness.add(prompt_of(16, 200));
  harness.add(prompt_of(3, 300));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 4}, {1, 6}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 9}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 1}, {2, 3}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(SchedulerTest, OnlyTheLastChunkSamples) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 4}));
  harness.add(prompt_of(9));
  EXPECT_FALSE(harness.step().sequences[0].samples);
  EXPECT_FALSE(harness.step().sequences[0].samples);
  const ExecutionPlan last = harness.step();
  EXPECT_EQ(rows_of(last), (Rows{{0, 1}}));
  EXPECT_TRUE(last.sequences[0].samples);
  EXPECT_EQ(last.num_prompt_rows, 1);
}

TEST(SchedulerTest, RunsAtMostMaxNumSeqs) {
  SchedulerHarness harness(options({.max_num_seqs = 2}));
  for (int i = 0; i < 4; ++i) {
    harness.add(prompt_of(2, 10 * i), {.params = with_max_tokens(2)});
  }
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 2}, {1, 2}}));
  EXPECT_EQ(harness.scheduler().num_waiting(), 2);
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 1}}));  // both end
  EXPECT_EQ(rows_of(harness.step()), (Rows{{2, 2}, {3, 2}}));
}

TEST(SchedulerTest, RunsNoMoreSequencesThanRows) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 2}));
  for (int i = 0; i < 4; ++i) {
    harness.add(prompt_of(3, 10 * i), {.params = with_max_tokens(4)});
  }
  while (harness.scheduler().has_unfinished()) {
    harness.step();  // the harness sees to it that the oldest advances
    ASSERT_LE(harness.scheduler().num_running(), 2);
  }
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, ShortageOfBlocksHoldsTheQueueWithoutOvertaking) {
  SchedulerHarness harness(options({.num_blocks = 6, .max_model_len = 24}));
  harness.add(prompt_of(12), {.params = with_max_tokens(4)});  // 3 blocks, later 4
  harness.add(prompt_of(16, 200), {.params = with_max_tokens(4)});
  harness.add(prompt_of(2, 300), {.params = with_max_tokens(1)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 12}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}}));  // 4 blocks wanted, 2 free; 2 would do for #2
  EXPECT_EQ(ordinals_of(harness.waiting()), (std::vector<uint64_t>{1, 2}));
  harness.run_to_end();
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, ChunkShrinksToTheBlocksThereAre) {
  SchedulerHarness harness(
      options({.num_blocks = 6, .max_num_batched_tokens = 12, .max_model_len = 24}));
  Sequence& older = harness.add(prompt_of(8), {.params = with_max_tokens(8)});
  Sequence& newer = harness.add(prompt_of(20, 200), {.params = with_max_tokens(4)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 8}, {1, 4}}));
  // The older takes its third block, so two are left for the 11 rows the budget would allow.
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 8}}));
  EXPECT_EQ(harness.pool().num_free(), 0);
  EXPECT_EQ(older.num_preemptions + newer.num_preemptions, 0);
}

TEST(SchedulerTest, PreemptsTheNewestWhenADecodeFindsNoBlock) {
  SchedulerHarness harness(options({.num_blocks = 6, .max_model_len = 24}));
  harness.add(prompt_of(8), {.params = with_max_tokens(8)});
  harness.add(prompt_of(7, 200), {.params = with_max_tokens(8)});
  Sequence& newest = harness.add(prompt_of(6, 300), {.params = with_max_tokens(8)});
  harness.step();  // 2 blocks each
  ASSERT_EQ(harness.pool().num_free(), 0);
  const ExecutionPlan plan = harness.step();
  EXPECT_EQ(plan.preempted, (std::vector<Sequence*>{&newest}));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 1}, {1, 1}}));
  EXPECT_TRUE(is_preempted(newest));
  EXPECT_EQ(newest.num_preemptions, 1);
  EXPECT_EQ(newest.num_output_tokens(), 1);  // keeps what it has said
  EXPECT_EQ(newest.num_computed_tokens, 0);
  EXPECT_EQ(newest.blocks.num_blocks(), 0);
  harness.run_to_end();
  EXPECT_EQ(newest.num_output_tokens(), 8);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, LowerPriorityValuesRunFirstThenOlderSequences) {
  SchedulerHarness harness(options({.max_num_seqs = 1}));
  for (const int64_t priority : {5, -1, 0, 0}) {
    harness.add(prompt_of(2), {.params = with_max_tokens(1), .priority = priority});
  }
  EXPECT_EQ(rows_of(harness.step()), (Rows{{1, 2}}));
  harness.add(prompt_of(2), {.params = with_max_tokens(2), .priority = -7});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{4, 2}}));  // came last, and goes first
  harness.add(prompt_of(2), {.params = with_max_tokens(1), .priority = -8});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{4, 1}}));  // what runs goes on
  for (const uint64_t next : {5, 2, 3, 0}) {
    EXPECT_EQ(rows_of(harness.step()), (Rows{{next, 2}}));
  }
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, PreemptsTheLastPriorityThenTheNewest) {
  for (const int64_t newest_priority : {2, 3, 7}) {
    SchedulerHarness harness(options({.num_blocks = 6, .max_model_len = 24}));
    const auto add = [&](int num_tokens, int64_t priority) -> Sequence& {
      return harness.add(prompt_of(num_tokens, 100 * num_tokens),
                         {.params = with_max_tokens(8), .priority = priority});
    };
    add(8, 0);
    Sequence& middle = add(7, 3);
    Sequence& newest = add(6, newest_priority);
    harness.step();  // 2 blocks each
    ASSERT_EQ(harness.pool().num_free(), 0);
    Sequence& expected = newest_priority < 3 ? middle : newest;
    EXPECT_EQ(harness.step().preempted, (std::vector<Sequence*>{&expected}));
    harness.run_to_end();
    harness.check_nothing_leaked();
  }
}

TEST(SchedulerTest, TheOneAskingIsPreemptedIfItIsTheNewest) {
  SchedulerHarness harness(options({.num_blocks = 4, .max_model_len = 16}));
  harness.add(prompt_of(6), {.params = with_max_tokens(2)});
  Sequence& newer = harness.add(prompt_of(8, 200), {.params = with_max_tokens(2)});
  harness.step();
  const ExecutionPlan plan = harness.step();  // the newer needs a third block
  EXPECT_EQ(plan.preempted, (std::vector<Sequence*>{&newer}));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 1}}));
}

// A follower is older than what overtook it while it waited, so it can be at its prompt when a
// newer sequence, planned before it in the same step, decodes.
TEST(SchedulerTest, PlannedRowsOfAPreemptedSequenceLeaveThePlan) {
  SchedulerHarness harness(
      options({.num_blocks = 7, .max_num_batched_tokens = 8, .max_model_len = 28}));
  Sequence& leader = harness.add(prompt_of(12), {.params = with_max_tokens(16)});
  harness.add(prompt_of(24), {.params = with_max_tokens(4), .leader = &leader});
  Sequence& newest = harness.add(prompt_of(1, 300), {.params = with_max_tokens(16)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 8}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 4}, {2, 1}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {2, 1}, {1, 6}}));  // 12 tokens from the cache
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {2, 1}, {1, 2}}));  // to the end of its block
  ASSERT_EQ(harness.pool().num_free(), 0);
  const ExecutionPlan plan = harness.step();
  EXPECT_EQ(plan.preempted, (std::vector<Sequence*>{&newest}));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 1}, {1, 4}}));
  EXPECT_EQ(plan.num_rows, 5);
  EXPECT_EQ(plan.num_prompt_rows, 4);
  harness.run_to_end();
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, PreemptedSequenceComesBackWhenAllOfItFitsAndAheadOfLaterArrivals) {
  SchedulerHarness harness(options({.num_blocks = 8,
                                    .max_num_batched_tokens = 9,
                                    .enable_prefix_caching = false,
                                    .max_model_len = 32}));
  Sequence& oldest = harness.add(prompt_of(8), {.params = with_max_tokens(10)});
  Sequence& newer = harness.add(prompt_of(28, 200), {.params = with_max_tokens(2)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 8}, {1, 1}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 8}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 8}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 3}}));  // to the end of the last block
  ASSERT_EQ(harness.step().preempted, (std::vector<Sequence*>{&newer}));
  Sequence& latest = harness.add(prompt_of(2, 300), {.params = with_max_tokens(2)});
  EXPECT_EQ(ordinals_of(harness.waiting()), (std::vector<uint64_t>{1, 2}));
  while (!oldest.is_finished()) {
    // It needs 7 blocks and at most 5 are free: enough for its next chunk, not for all of it.
    EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}}));
  }
  EXPECT_EQ(rows_of(harness.step()), (Rows{{1, 9}}));
  while (!newer.is_finished()) harness.step();
  EXPECT_EQ(newer.num_preemptions, 1);
  harness.run_to_end();
  EXPECT_EQ(latest.num_output_tokens(), 2);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, RecomputingUsesWhatThePrefixCacheStillHas) {
  SchedulerHarness harness(options({.num_blocks = 7, .max_model_len = 28}));
  harness.add(prompt_of(8), {.params = with_max_tokens(2)});
  Sequence& newer = harness.add(prompt_of(17, 200), {.params = with_max_tokens(4)});
  harness.step();  // 2 + 5 blocks
  ASSERT_EQ(harness.step().preempted, (std::vector<Sequence*>{&newer}));
  // The oldest has ended, with one block of the newer, the tail of it, taken.
  const ExecutionPlan back = harness.step();
  EXPECT_EQ(rows_of(back), (Rows{{1, 2}}));  // 4 of 18 tokens' blocks are left
  EXPECT_EQ(back.num_prompt_rows, 1);
  EXPECT_EQ(newer.num_cached_prompt_tokens, 0);  // counts the first admission only
  harness.run_to_end();
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, AdmissionMatchesThePrefixCacheButComputesTheLastToken) {
  SchedulerHarness harness(options({}));
  harness.add(prompt_of(8), {.params = with_max_tokens(1)});
  harness.run_to_end();
  Sequence& same = harness.add(prompt_of(8), {.params = with_max_tokens(1)});
  Sequence& longer = harness.add(prompt_of(11), {.params = with_max_tokens(1)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{1, 4}, {2, 3}}));
  EXPECT_EQ(same.num_cached_prompt_tokens, 4);
  EXPECT_EQ(longer.num_cached_prompt_tokens, 8);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, OutputTokensAreCachedToo) {
  SchedulerHarness harness(options({}));
  Sequence& first = harness.add(prompt_of(6), {.params = with_max_tokens(7), .stream = 5});
  harness.run_to_end();
  // 12 of 13 tokens were computed: a conversation goes on from its third block.
  std::vector<int32_t> conversation(first.tokens().begin(), first.tokens().end());
  conversation.push_back(1);
  Sequence& second = harness.add(conversation, {.params = with_max_tokens(1)});
  harness.step();
  EXPECT_EQ(second.num_cached_prompt_tokens, 12);
}

TEST(SchedulerTest, SharesWhatARunningPrefillHasComputedSoFar) {
  SchedulerHarness harness(options({.max_num_seqs = 2, .max_num_batched_tokens = 10}));
  harness.add(prompt_of(18));
  harness.step();
  Sequence& second = harness.add(prompt_of(18));
  harness.step();  // the first's other 8 rows, so 2 are left for an admission
  EXPECT_EQ(second.num_cached_prompt_tokens, 8);
}

TEST(SchedulerTest, SequenceThatMustComputeItsPromptMatchesNothing) {
  SchedulerHarness harness(options({}));
  harness.add(prompt_of(8), {.params = with_max_tokens(1)});
  harness.run_to_end();
  Sequence& sequence =
      harness.add(prompt_of(8), {.params = with_max_tokens(1), .use_prefix_cache = false});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{1, 8}}));
  EXPECT_EQ(sequence.num_cached_prompt_tokens, 0);
}

TEST(SchedulerTest, WithoutPrefixCachingNothingIsShared) {
  SchedulerHarness harness(options({.enable_prefix_caching = false}));
  Sequence& leader = harness.add(prompt_of(8), {.params = with_max_tokens(2)});
  harness.add(prompt_of(8), {.params = with_max_tokens(2), .leader = &leader});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 8}, {1, 8}}));
  EXPECT_EQ(harness.scheduler().prefix_cache().num_cached_blocks(), 0);
  harness.run_to_end();
  harness.check_nothing_leaked();
}

class PrefillLeaderTest : public ::testing::Test {
 protected:
  // A leader of a 12-token prompt, two followers and an unrelated sequence, 8 rows a step.
  void SetUp() override {
    leader_ = &harness_.add(prompt_of(12), {.params = with_max_tokens(4)});
    first_ = &harness_.add(prompt_of(12), {.params = with_max_tokens(4), .leader = leader_});
    second_ = &harness_.add(prompt_of(12), {.params = with_max_tokens(4), .leader = leader_});
    other_ = &harness_.add(prompt_of(2, 300), {.params = with_max_tokens(8)});
  }
  void TearDown() override {
    harness_.run_to_end();
    harness_.check_nothing_leaked();
  }

  SchedulerHarness harness_{options({.max_num_batched_tokens = 8, .max_model_len = 32})};
  Sequence* leader_ = nullptr;
  Sequence* first_ = nullptr;
  Sequence* second_ = nullptr;
  Sequence* other_ = nullptr;
};

TEST_F(PrefillLeaderTest, FollowersWaitWithoutBlockingOthersThenShare) {
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{0, 8}}));
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{0, 4}, {3, 2}}));
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{0, 1}, {3, 1}, {1, 4}, {2, 2}}));
  EXPECT_EQ(first_->num_cached_prompt_tokens, 8);
  EXPECT_EQ(second_->num_cached_prompt_tokens, 8);
}

TEST_F(PrefillLeaderTest, FirstFollowerTakesOverFromAnAbortedLeader) {
  harness_.step();
  harness_.abort(*leader_);
  harness_.forget(*leader_);
  EXPECT_EQ(first_->prefill_leader, nullptr);
  EXPECT_EQ(second_->prefill_leader, first_);
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{1, 4}, {3, 2}}));  // 8 tokens from the cache
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{1, 1}, {3, 1}, {2, 4}}));
}

TEST_F(PrefillLeaderTest, LeaderAbortedWhileWaitingLetsItsFollowersGo) {
  harness_.abort(*leader_);
  harness_.forget(*leader_);
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{1, 8}}));
}

TEST_F(PrefillLeaderTest, LeaderThatEndsWithItsFirstTokenLetsItsFollowersGo) {
  harness_.abort(*first_);
  harness_.abort(*second_);
  harness_.run_to_end();
  Sequence& leader = harness_.add(prompt_of(12, 500), {.params = with_max_tokens(1)});
  Sequence& follower =
      harness_.add(prompt_of(12, 500), {.params = with_max_tokens(1), .leader = &leader});
  while (!leader.is_finished()) harness_.step();
  harness_.forget(leader);
  EXPECT_EQ(follower.prefill_leader, nullptr);
  harness_.step();
  EXPECT_EQ(follower.num_cached_prompt_tokens, 8);
}

TEST_F(PrefillLeaderTest, AbortedFollowerIsForgotten) {
  harness_.abort(*first_);
  harness_.forget(*first_);
  harness_.step();
  harness_.step();
  EXPECT_EQ(rows_of(harness_.step()), (Rows{{0, 1}, {3, 1}, {2, 4}}));
}

TEST_F(PrefillLeaderTest, LeaderThatHasPrefilledIsNotWaitedFor) {
  harness_.step();
  harness_.step();
  Sequence& late = harness_.add(prompt_of(12), {.params = with_max_tokens(1), .leader = leader_});
  EXPECT_EQ(late.prefill_leader, nullptr);
}

TEST(SchedulerTest, FollowersOfAPreemptedLeaderWaitForItsReturn) {
  SchedulerHarness harness(
      options({.num_blocks = 5, .max_num_batched_tokens = 12, .max_model_len = 20}));
  Sequence& oldest = harness.add(prompt_of(4), {.params = with_max_tokens(6)});
  Sequence& leader = harness.add(prompt_of(17, 200), {.params = with_max_tokens(2)});
  Sequence& follower =
      harness.add(prompt_of(17, 200), {.params = with_max_tokens(2), .leader = &leader});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 4}, {1, 8}}));
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 1}, {1, 4}}));  // no block is left
  const ExecutionPlan plan = harness.step();
  EXPECT_EQ(plan.preempted, (std::vector<Sequence*>{&leader}));
  EXPECT_EQ(follower.prefill_leader, &leader);
  while (!oldest.is_finished()) harness.step();
  harness.run_to_end();
  EXPECT_EQ(leader.num_output_tokens(), 2);
  EXPECT_EQ(follower.num_cached_prompt_tokens, 16);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, PromptsTooShortToShareDoNotWait) {
  SchedulerHarness harness(options({}));
  Sequence& leader = harness.add(prompt_of(4), {.params = with_max_tokens(2)});
  harness.add(prompt_of(4), {.params = with_max_tokens(2), .leader = &leader});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 4}, {1, 4}}));
}

TEST(SchedulerTest, AbortGivesBackTheBlocksAtAnyStage) {
  SchedulerHarness harness(
      options({.num_blocks = 7, .max_num_batched_tokens = 24, .max_model_len = 28}));
  Sequence& decoding = harness.add(prompt_of(8));
  Sequence& prefilling = harness.add(prompt_of(20, 200), {.params = with_max_tokens(8)});
  Sequence& waiting = harness.add(prompt_of(2, 300));
  harness.step();
  ASSERT_TRUE(is_decoding(decoding));
  ASSERT_TRUE(std::holds_alternative<Prefilling>(prefilling.state));
  for (Sequence* sequence : {&decoding, &prefilling, &waiting}) {
    harness.abort(*sequence);
    EXPECT_EQ(std::get<Finished>(sequence->state).reason, FinishReason::kAbort);
  }
  EXPECT_THROW(harness.scheduler().finish(waiting, FinishReason::kAbort), InternalError);
  harness.check_nothing_leaked();
}

TEST(SchedulerTest, RefusesResultsThatDoNotFitThePlan) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 4}));
  harness.add(prompt_of(6));
  const ExecutionPlan chunk = harness.plan();
  EXPECT_THROW(harness.scheduler().advance(chunk, {}), InternalError);
  EXPECT_THROW(harness.scheduler().advance(chunk, {{{1}}}), InternalError);  // samples nothing
  harness.advance(chunk);
  const ExecutionPlan last = harness.plan();
  EXPECT_THROW(harness.scheduler().advance(last, {{{}}}), InternalError);
  EXPECT_THROW(harness.scheduler().advance(last, {{{1, 2}}}),
               InternalError);  // one row, two tokens
  harness.advance(last);
}

TEST(SchedulerTest, RefusesSequencesItCouldNotFinish) {
  BlockPool pool(4);
  Scheduler scheduler({.block_size = 4}, pool);
  const SamplingParams params = with_max_tokens(10);
  Sequence too_long(0, prompt_of(7), params, 4, 64);
  EXPECT_THROW(scheduler.add(too_long), InternalError);
  Sequence fits(1, prompt_of(6), params, 4, 64);
  scheduler.add(fits);
  Sequence other_blocks(2, prompt_of(2), params, 8, 64);
  EXPECT_THROW(scheduler.add(other_blocks), InternalError);
  Sequence unknown_leader(3, prompt_of(5), params, 4, 64);
  Sequence follower(4, prompt_of(5), params, 4, 64);
  follower.prefill_leader = &unknown_leader;
  EXPECT_THROW(scheduler.add(follower), InternalError);
  scheduler.check_integrity();
  EXPECT_EQ(scheduler.num_waiting(), 1);
}

TEST(SchedulerTest, EverythingFinishesInAPoolThatHoldsOneSequence) {
  SchedulerHarness harness(options({.num_blocks = 8, .max_model_len = 32}));
  std::vector<Sequence*> sequences;
  for (int i = 0; i < 8; ++i) {
    sequences.push_back(&harness.add(prompt_of(1 + 3 * i, 50 * i), {.params = with_max_tokens(0)}));
  }
  harness.run_to_end();
  for (const Sequence* sequence : sequences) EXPECT_EQ(sequence->num_tokens(), 32);
  harness.check_nothing_leaked();
}

}  // namespace
}  // namespace specdec::testing
