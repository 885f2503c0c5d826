// The scheduler's slots and blocks for drafts: reserved after all else, and none left behind.
#include <gtest/gtest.h>

#include <random>
#include <source_location>
#include <utility>
#include <variant>
#include <vector>

#include "specdec/error.h"
#include "testing/scheduler_harness.h"

namespace specdec::testing {
namespace {

using Budgets =
    std::vector<std::pair<uint64_t, int>>;  // ordinal, draft slots; of decoding sequences

Budgets budgets_of(const ExecutionPlan& plan) {
  Budgets budgets;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    if (!std::holds_alternative<Decoding>(scheduled.sequence->state)) continue;
    budgets.emplace_back(scheduled.sequence->ordinal, scheduled.draft_budget);
  }
  return budgets;
}

DraftBudget always(int num_drafts) {
  return {.wanted = [num_drafts](const Sequence&, int) { return num_drafts; }};
}

int whole_budget(const ScheduledSequence& scheduled) { return scheduled.draft_budget; }

// Takes a step whose plan has these rows and slots.
void take(SchedulerHarness& harness, const ExecutionPlan& plan, const Rows& rows,
          const Budgets& budgets,
          const std::source_location& at = std::source_location::current()) {
  const ::testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), "the step");
  EXPECT_EQ(rows_of(plan), rows);
  EXPECT_EQ(budgets_of(plan), budgets);
  harness.advance(plan);
}

struct Setup {
  int num_blocks = 16;
  int max_num_batched_tokens = 32;
  bool enable_prefix_caching = true;
  int max_model_len = 64;
};

// Blocks of 4 tokens.
HarnessOptions options(const Setup& setup) {
  return {.config = {.max_num_seqs = 8,
                     .max_num_batched_tokens = setup.max_num_batched_tokens,
                     .block_size = 4,
                     .enable_prefix_caching = setup.enable_prefix_caching},
          .num_blocks = setup.num_blocks,
          .max_model_len = setup.max_model_len};
}

TEST(SchedulerDraftTest, NothingIsDraftedWithoutABudget) {
  SchedulerHarness harness(options({}));
  harness.add(prompt_of(6));
  harness.step();
  ExecutionPlan plan = harness.plan();
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 0}}));
  EXPECT_EQ(plan.draft_budget, 0);
  plan.set_num_drafts(0, 0);
  EXPECT_EQ(plan.num_rows, 1);
  EXPECT_THROW(plan.set_num_drafts(0, 1), InternalError);
  harness.advance(plan);
}

TEST(SchedulerDraftTest, DecodingSequenceGetsABudgetAndBlocksAfterItsOneRow) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(6));
  harness.step();  // 7 tokens, 6 computed
  ExecutionPlan plan = harness.plan(always(6));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 1}}));
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 6}}));
  EXPECT_EQ(plan.num_rows, 1);
  EXPECT_EQ(plan.draft_budget, 6);
  EXPECT_EQ(sequence.blocks.num_blocks(), 4);  // 13 slots
  EXPECT_TRUE(plan.sequences[0].samples);
  harness.advance(plan);
}

TEST(SchedulerDraftTest, DraftsBecomeRowsUpToTheBudget) {
  SchedulerHarness harness(options({}));
  harness.add(prompt_of(6));
  harness.add(prompt_of(4, 200));
  harness.step();
  ExecutionPlan plan = harness.plan(always(3));
  plan.set_num_drafts(0, 3);
  plan.set_num_drafts(1, 2);
  EXPECT_EQ(rows_of(plan), (Rows{{0, 4}, {1, 3}}));
  EXPECT_EQ(plan.num_rows, 7);
  plan.set_num_drafts(0, 1);
  EXPECT_EQ(rows_of(plan), (Rows{{0, 2}, {1, 3}}));
  EXPECT_EQ(plan.num_rows, 5);
  EXPECT_THROW(plan.set_num_drafts(0, 4), InternalError);
  EXPECT_THROW(plan.set_num_drafts(0, -1), InternalError);
}

TEST(SchedulerDraftTest, PromptsDoNotDraftNorCountAsDecoding) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 8}));
  harness.add(prompt_of(3));
  harness.add(prompt_of(3, 200));
  Sequence& prompt = harness.add(prompt_of(20, 300));
  std::vector<int> counts;
  const DraftBudget budget{.wanted = [&](const Sequence& sequence, int num_decoding) {
    EXPECT_NE(&sequence, &prompt);
    counts.push_back(num_decoding);
    return 1;
  }};
  harness.advance(harness.plan(budget));
  EXPECT_TRUE(counts.empty());
  harness.advance(harness.plan(budget));
  EXPECT_EQ(counts, (std::vector<int>{2, 2}));
}

TEST(SchedulerDraftTest, RowsForDraftsAreSharedOut) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 10}));
  for (int i = 0; i < 3; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  // Seven rows are left: another sequence is the one to get three.
  for (const Budgets& budgets : {Budgets{{0, 3}, {1, 2}, {2, 2}}, Budgets{{0, 2}, {1, 3}, {2, 2}},
                                 Budgets{{0, 2}, {1, 2}, {2, 3}}}) {
    const ExecutionPlan plan = harness.plan(always(5));
    EXPECT_EQ(budgets_of(plan), budgets);
    harness.advance(plan);
  }
}

TEST(SchedulerDraftTest, RowsThatSomeDoNotWantGoToTheOldestFirst) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 14}));
  for (int i = 0; i < 3; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  const ExecutionPlan plan = harness.plan({.wanted = [](const Sequence& sequence, int) {
    return sequence.ordinal == 0 ? 6 : sequence.ordinal == 1 ? 1 : 5;
  }});
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 5}, {1, 1}, {2, 5}}));
  harness.advance(plan);
}

// Beside prompts that take every row but one, drafts come to everyone in turn.
TEST(SchedulerDraftTest, NobodyWaitsForDraftsBehindAnother) {
  SchedulerHarness harness(options({.num_blocks = 64, .max_num_batched_tokens = 8}));
  for (int i = 0; i < 3; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  harness.add(prompt_of(60, 500));
  DraftBudget budget = always(4);
  budget.most_held = 1;
  for (uint64_t turn = 0; turn < 3; ++turn) {
    const ExecutionPlan plan = harness.plan(budget);
    for (const auto& [ordinal, draft_budget] : budgets_of(plan)) {
      EXPECT_EQ(draft_budget, ordinal == turn ? 1 : 0);
    }
    harness.advance(plan);
  }
}

TEST(SchedulerDraftTest, BudgetOfEachSequenceIsItsOwn) {
  SchedulerHarness harness(options({}));
  for (int i = 0; i < 3; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  const ExecutionPlan plan =
      harness.plan({.wanted = [](const Sequence& sequence, int num_decoding) {
        return sequence.ordinal == 1 ? 0 : num_decoding + static_cast<int>(sequence.ordinal);
      }});
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 3}, {1, 0}, {2, 5}}));
  harness.advance(plan);
}

TEST(SchedulerDraftTest, DraftsShrinkToTheBlocksEveryRowHasLeft) {
  SchedulerHarness harness(options({.num_blocks = 5, .max_model_len = 20}));
  harness.add(prompt_of(7), {.params = with_max_tokens(12)});
  Sequence& newer = harness.add(prompt_of(8, 200), {.params = with_max_tokens(4)});
  harness.step();
  ASSERT_EQ(harness.pool().num_free(), 1);
  // The newer takes the last block for its row; the older's drafts do without one.
  const ExecutionPlan plan = harness.plan(always(6));
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 0}, {1, 3}}));  // the rest of that block
  EXPECT_EQ(harness.pool().num_free(), 0);
  EXPECT_EQ(newer.num_preemptions, 0);
  harness.advance(plan);
}

TEST(SchedulerDraftTest, NothingIsDraftedThatCouldNotBeCommitted) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(4), {.params = with_max_tokens(5)});
  harness.step();  // 1 of 5
  EXPECT_EQ(sequence.max_draft_depth(8), 3);
  ExecutionPlan plan = harness.plan(always(8), whole_budget);
  EXPECT_EQ(plan.sequences[0].draft_budget, 8);  // of a tree
  EXPECT_EQ(plan.sequences[0].max_draft_depth, 3);
  EXPECT_THROW(harness.scheduler().advance(plan, {{{0, 0, 0, 0, 0}}}), InternalError);
  harness.advance(plan, {{{0, 0, 0}}});  // 4 of 5: the last one follows from its row alone
  plan = harness.plan(always(8));
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 0}}));
  EXPECT_EQ(plan.sequences[0].max_draft_depth, 0);
  harness.advance(plan);
  EXPECT_TRUE(sequence.is_finished());
  harness.check_nothing_leaked();
}

TEST(SchedulerDraftTest, DepthEndsWhereTheModelDoes) {
  SchedulerHarness harness(options({.max_model_len = 10}));
  Sequence& sequence = harness.add(prompt_of(6), {.params = with_max_tokens(0)});
  harness.step();
  const ExecutionPlan plan = harness.plan(always(2));
  EXPECT_EQ(plan.sequences[0].max_draft_depth, 2);
  EXPECT_EQ(sequence.max_draft_depth(8), 2);
  harness.advance(plan);
  EXPECT_EQ(harness.plan(always(5)).sequences[0].max_draft_depth, 1);
}

TEST(SchedulerDraftTest, DraftsGetNoBlockThatARunningPromptCanUse) {
  SchedulerHarness harness(
      options({.num_blocks = 7, .max_num_batched_tokens = 16, .max_model_len = 28}));
  harness.add(prompt_of(7), {.params = with_max_tokens(16)});
  Sequence& prompt = harness.add(prompt_of(22, 200), {.params = with_max_tokens(4)});
  EXPECT_EQ(rows_of(harness.step()), (Rows{{0, 7}, {1, 9}}));  // 2 + 3 blocks
  // 15 rows are left, 7 of them held for drafts; the prompt's 8 rows want the two blocks left.
  const ExecutionPlan plan = harness.plan(always(9));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 1}, {1, 8}}));
  EXPECT_EQ(budgets_of(plan), (Budgets{{0, 0}}));
  EXPECT_EQ(prompt.num_preemptions, 0);
  harness.advance(plan);
}

TEST(SchedulerDraftTest, DraftsGetNoBlockThatAnAdmissionNeeds) {
  SchedulerHarness harness(options({.num_blocks = 5, .max_model_len = 20}));
  harness.add(prompt_of(7), {.params = with_max_tokens(12)});
  harness.step();
  harness.add(prompt_of(12, 200), {.params = with_max_tokens(4)});
  take(harness, harness.plan(always(9)), Rows{{0, 1}, {1, 12}}, Budgets{{0, 0}});
}

TEST(SchedulerDraftTest, PromptsTakeTheRowsThatAreNotHeldForDrafts) {
  SchedulerHarness harness(options({.num_blocks = 32, .max_num_batched_tokens = 16}));
  for (int i = 0; i < 2; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  harness.add(prompt_of(20, 500));
  DraftBudget budget = always(6);
  budget.most_held = 3;
  take(harness, harness.plan(budget), Rows{{0, 1}, {1, 1}, {2, 11}}, Budgets{{0, 2}, {1, 1}});
}

TEST(SchedulerDraftTest, DraftsTakeRowsThatPromptsDoNotUseHoweverFewAreHeld) {
  SchedulerHarness harness(options({.num_blocks = 32, .max_num_batched_tokens = 16}));
  for (int i = 0; i < 2; ++i) harness.add(prompt_of(2, 100 * i));
  harness.step();
  harness.add(prompt_of(3, 500));
  DraftBudget budget = always(6);
  budget.most_held = 0;
  take(harness, harness.plan(budget), Rows{{0, 1}, {1, 1}, {2, 3}}, Budgets{{0, 6}, {1, 5}});
}

TEST(SchedulerDraftTest, PromptsAndDraftsEachGetHalfOfTheRowsBothWant) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 10}));
  harness.add(prompt_of(4));
  harness.step();
  harness.add(prompt_of(30, 200));
  take(harness, harness.plan(always(20)), Rows{{0, 1}, {1, 5}}, Budgets{{0, 4}});
  take(harness, harness.plan(always(2)), Rows{{0, 1}, {1, 7}}, Budgets{{0, 2}});
}

TEST(SchedulerDraftTest, RowsThatPromptsDoNotUseGoToDrafts) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 10}));
  harness.add(prompt_of(4));
  harness.step();
  harness.add(prompt_of(2, 200));
  take(harness, harness.plan(always(20)), Rows{{0, 1}, {1, 2}}, Budgets{{0, 7}});
}

TEST(SchedulerDraftTest, OldestPromptAdvancesWhenOneRowIsLeft) {
  SchedulerHarness harness(options({.max_num_batched_tokens = 3}));
  harness.add(prompt_of(1));
  harness.add(prompt_of(1, 200));
  harness.step();
  Sequence& prompt = harness.add(prompt_of(3, 300));
  for (int i = 0; i < 3; ++i) {
    const ExecutionPlan plan = harness.plan(always(5), whole_budget);
    EXPECT_EQ(rows_of(plan), (Rows{{0, 1}, {1, 1}, {2, 1}}));
    harness.advance(plan);
  }
  EXPECT_TRUE(std::holds_alternative<Decoding>(prompt.state));
}

TEST(SchedulerDraftTest, PreemptedSequenceTakesItsDraftsOutOfThePlan) {
  SchedulerHarness harness(
      options({.num_blocks = 7, .max_num_batched_tokens = 8, .max_model_len = 28}));
  Sequence& leader = harness.add(prompt_of(12), {.params = with_max_tokens(16)});
  harness.add(prompt_of(24), {.params = with_max_tokens(4), .leader = &leader});
  Sequence& newest = harness.add(prompt_of(1, 300), {.params = with_max_tokens(16)});
  harness.step();
  harness.step();
  harness.step();
  harness.step();
  ASSERT_EQ(harness.pool().num_free(), 0);
  const ExecutionPlan plan = harness.plan(always(1), whole_budget);
  EXPECT_EQ(plan.preempted, (std::vector<Sequence*>{&newest}));
  EXPECT_EQ(rows_of(plan), (Rows{{0, 2}, {1, 4}}));
  EXPECT_EQ(plan.draft_budget, 1);
  EXPECT_EQ(plan.num_rows, 6);
  EXPECT_EQ(plan.num_prompt_rows, 4);
  harness.advance(plan);
  harness.run_to_end();
  harness.check_nothing_leaked();
}

TEST(SchedulerDraftTest, AcceptedTokensAreCommittedAndSpareBlocksGoBack) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(6));
  harness.step();
  const ExecutionPlan plan = harness.plan(always(6), whole_budget);
  ASSERT_EQ(sequence.blocks.num_blocks(), 4);
  const std::vector<SequenceUpdate> updates = harness.advance(plan, {{{1, 2, 3}}});
  EXPECT_EQ(updates[0].num_new_tokens, 3);
  EXPECT_FALSE(updates[0].finished);
  EXPECT_EQ(sequence.num_tokens(), 10);
  EXPECT_EQ(sequence.num_computed_tokens, 9);
  EXPECT_EQ(sequence.blocks.num_blocks(), 3);
  EXPECT_EQ(harness.scheduler().prefix_cache().num_cached_blocks(), 2);
}

TEST(SchedulerDraftTest, BlocksOfRejectedOrAbsentDraftsGoBack) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(6), {.params = with_max_tokens(32)});
  harness.step();
  const int num_free = harness.pool().num_free();
  harness.advance(harness.plan(always(12), whole_budget));  // all rejected
  EXPECT_EQ(harness.pool().num_free(), num_free);           // the token fits its second block
  EXPECT_EQ(sequence.num_tokens(), 8);
  harness.advance(harness.plan(always(12)));  // none drafted
  EXPECT_EQ(harness.pool().num_free(), num_free);
  EXPECT_EQ(sequence.num_tokens(), 9);
  EXPECT_EQ(sequence.blocks.num_blocks(), 2);  // the ninth has no KV yet
}

TEST(SchedulerDraftTest, PrefixCacheSeesCommittedTokensOnly) {
  SchedulerHarness harness(options({}));
  Sequence& sequence = harness.add(prompt_of(6), {.params = with_max_tokens(32)});
  harness.step();
  harness.advance(harness.plan(always(14), whole_budget));  // 20 tokens' KV written, 7 committed
  EXPECT_EQ(harness.scheduler().prefix_cache().num_cached_blocks(), 1);
  harness.advance(harness.plan(always(14), whole_budget),
                  {{{1, 2, 3, 1}}});  // 12 tokens, 11 with KV
  EXPECT_EQ(harness.scheduler().prefix_cache().num_cached_blocks(), 2);
  EXPECT_EQ(sequence.num_computed_tokens, 11);
  std::vector<int32_t> longer(sequence.tokens().begin(), sequence.tokens().end());
  longer.resize(20, 1);
  Sequence& other = harness.add(longer, {.params = with_max_tokens(1)});
  harness.step();
  EXPECT_EQ(other.num_cached_prompt_tokens, 8);
}

TEST(SchedulerDraftTest, StopTokenAmongAcceptedTokensCutsTheRest) {
  SchedulerHarness harness(options({}));
  SamplingParams params = with_max_tokens(16);
  params.stop_token_ids = {42};
  Sequence& sequence = harness.add(prompt_of(6), {.params = params});
  harness.step();
  const ExecutionPlan plan = harness.plan(always(7), whole_budget);
  const std::vector<SequenceUpdate> updates = harness.advance(plan, {{{1, 2, 42, 3, 4, 5, 6, 7}}});
  EXPECT_EQ(updates[0].num_new_tokens, 3);
  EXPECT_TRUE(updates[0].finished);
  EXPECT_EQ(sequence.num_tokens(), 10);
  EXPECT_EQ(sequence.tokens().back(), 42);
  EXPECT_EQ(std::get<Finished>(sequence.state).stop_token_id, 42);
  EXPECT_EQ(sequence.blocks.num_blocks(), 0);
  EXPECT_EQ(harness.scheduler().prefix_cache().num_cached_blocks(), 2);  // 9 have KV
  harness.check_nothing_leaked();
}

TEST(SchedulerDraftTest, RefusesMoreTokensThanDraftRowsAllow) {
  SchedulerHarness harness(options({}));
  harness.add(prompt_of(6));
  harness.step();
  ExecutionPlan plan = harness.plan(always(4));
  plan.set_num_drafts(0, 2);
  EXPECT_THROW(harness.scheduler().advance(plan, {{{1, 2, 3, 0}}}), InternalError);
  EXPECT_THROW(harness.scheduler().advance(plan, {{{}}}), InternalError);
  plan.sequences[0].num_rows = 6;  // past the slots
  EXPECT_THROW(harness.scheduler().advance(plan, {{{1}}}), InternalError);
  plan.sequences[0].num_rows = 3;
  harness.scheduler().advance(plan, {{{1, 2, 3}}});
  harness.check_integrity();
}

// Drafts that are never accepted leave every other decision as it is without them: which sequences
// run, wait and are preempted, and when. Rows are plentiful, blocks are not.
TEST(SchedulerDraftTest, DraftsPreemptNobodyAndHoldUpNobody) {
  const HarnessOptions shared = options({.num_blocks = 12,
                                         .max_num_batched_tokens = 512,
                                         .enable_prefix_caching = false,
                                         .max_model_len = 40});
  SchedulerHarness plain(shared), drafting(shared);
  std::mt19937 random(5);
  int num_preempted = 0, draft_budget = 0;
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    if (random() % 4 == 0 && plain.scheduler().num_waiting() < 4) {
      const int num_prompt_tokens = 1 + static_cast<int>(random() % 20);
      const SamplingParams params = with_max_tokens(1 + static_cast<int>(random() % 19));
      plain.add(prompt_of(num_prompt_tokens), {.params = params});
      drafting.add(prompt_of(num_prompt_tokens), {.params = params});
    }
    ExecutionPlan expected = plain.plan();
    ExecutionPlan plan = drafting.plan(always(static_cast<int>(random() % 30)));
    ASSERT_EQ(rows_of(plan), rows_of(expected));
    ASSERT_EQ(plan.preempted.size(), expected.preempted.size());
    num_preempted += static_cast<int>(plan.preempted.size());
    draft_budget += plan.draft_budget;
    plain.advance(expected);
    drafting.advance(plan);
  }
  EXPECT_GT(num_preempted, 50);
  EXPECT_GT(draft_budget, 1000);
}

}  // namespace
}  // namespace specdec::testing
