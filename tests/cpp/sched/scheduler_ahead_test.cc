// Steps planned while the outcomes of others are not known: every sequence still gets its own
// tokens, and whatever a step under way writes lies in blocks of its sequence.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

#include "testing/scheduler_harness.h"

namespace specdec::testing {
namespace {

struct AheadCase {
  int num_blocks = 0;
  int max_depth = 0;  // of drafts
  int tree_width = 1;
  int num_cached_states = 0;  // 0: the model has no recurrent layers
};

constexpr int kMaxSeqs = 6;
constexpr int kMaxNodes = 12;

class SchedulerAheadTest : public ::testing::TestWithParam<AheadCase> {
 protected:
  TreeShape shape() const { return {.width = GetParam().tree_width, .max_nodes = kMaxNodes}; }

  // The slots that a step writes to once the ones before it are committed.
  void expect_room(const Sequence& sequence, int depth) const {
    const int num_levels = std::min(depth, sequence.max_num_tokens() - 1 - sequence.num_tokens());
    const int num_nodes = std::min(num_levels * GetParam().tree_width, kMaxNodes);
    EXPECT_GE(sequence.blocks.capacity_tokens(), sequence.num_tokens() + num_nodes);
  }
};

TEST_P(SchedulerAheadTest, SequencesGetTheirTokensInBlocksOfTheirOwn) {
  StateConfig states;
  if (const int num_cached = GetParam().num_cached_states; num_cached > 0) {
    states = {
        .num_slots = kMaxSeqs, .num_cached = num_cached, .max_drafts = kMaxNodes, .interval = 8};
  }
  SchedulerHarness harness({.config = {.max_num_seqs = kMaxSeqs,
                                       .max_num_batched_tokens = 64,
                                       .block_size = 4,
                                       .enable_prefix_caching = true,
                                       .states = states},
                            .num_blocks = GetParam().num_blocks,
                            .max_model_len = 40});
  Scheduler& scheduler = harness.scheduler();
  std::mt19937 random(11);
  const auto pick = [&](int size) { return static_cast<int>(random() % size); };
  std::deque<ExecutionPlan> under_way;
  std::vector<Sequence*> all;
  int num_ahead = 0, num_overlapped = 0, num_by_plan = 0, num_kept = 0;
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    if (pick(6) == 0 && scheduler.num_waiting() < 3) {
      SamplingParams params = with_max_tokens(1 + pick(24));
      if (pick(2) == 0) params.eos_token_ids = {pick(4)};
      all.push_back(&harness.add(prompt_of(1 + pick(12)),
                                 {.params = params, .stream = static_cast<uint64_t>(step)}));
    }
    if (pick(40) == 0 && scheduler.num_running() > 0) {
      harness.abort(*scheduler.running()[pick(scheduler.num_running())]);
    }
    while (under_way.size() < 2 && scheduler.num_running() > 0 && !scheduler.has_other_work()) {
      auto plan = scheduler.plan_ahead(pick(GetParam().max_depth + 1), shape());
      harness.check_integrity();
      if (!plan.has_value()) break;
      EXPECT_EQ(static_cast<int>(plan->sequences.size()), scheduler.num_running());
      num_overlapped += under_way.empty() ? 0 : 1;
      under_way.push_back(*std::move(plan));
      ++num_ahead;
    }
    if (under_way.empty()) {
      harness.step();
      ++num_by_plan;
      continue;
    }
    ExecutionPlan plan = std::move(under_way.front());
    under_way.pop_front();
    std::erase_if(plan.sequences, [](const ScheduledSequence& scheduled) {
      return scheduled.sequence->is_finished();
    });
    for (const ScheduledSequence& scheduled : plan.sequences) {
      expect_room(*scheduled.sequence, scheduled.max_draft_depth);
    }
    harness.run_roots(plan);
    for (const ScheduledSequence& scheduled : plan.sequences) {
      num_kept += static_cast<int>(scheduled.kept_states.size());
    }
    harness.advance(plan, [&](const ScheduledSequence& scheduled) {
      const Sequence& sequence = *scheduled.sequence;
      return pick(sequence.max_draft_depth(scheduled.max_draft_depth) + 1);
    });
  }
  EXPECT_GT(num_ahead, 500);
  EXPECT_GT(num_overlapped, 100);
  EXPECT_GT(num_by_plan, 100);
  EXPECT_EQ(num_kept > 100, GetParam().num_cached_states > 0);
  for (const Sequence* sequence : all) {
    for (int i = sequence->num_prompt_tokens(); i < sequence->num_tokens(); ++i) {
      ASSERT_EQ(sequence->tokens()[i], harness.token_at(*sequence, i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SchedulerAheadTest,
    ::testing::Values(
        AheadCase{.num_blocks = 64, .max_depth = 0}, AheadCase{.num_blocks = 64, .max_depth = 4},
        AheadCase{.num_blocks = 24, .max_depth = 5},
        AheadCase{.num_blocks = 40, .max_depth = 3, .tree_width = 3},
        AheadCase{.num_blocks = 24, .max_depth = 5, .num_cached_states = 3},
        AheadCase{.num_blocks = 64, .max_depth = 3, .tree_width = 3, .num_cached_states = 24}));

}  // namespace
}  // namespace specdec::testing
