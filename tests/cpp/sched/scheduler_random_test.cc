// Random operation sequences on the scheduler: whatever happens to a sequence, its tokens are those
// it gets alone, drafts or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "testing/scheduler_harness.h"

namespace specdec::testing {
namespace {

// The end of a sequence, worked out by itself, without engine or scheduler.
struct Expected {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kLength;
};

bool has(const std::vector<int32_t>& tokens, int32_t token) {
  return std::count(tokens.begin(), tokens.end(), token) > 0;
}

Expected run_alone(const std::vector<int32_t>& prompt,
                   const SchedulerHarness::SequenceOptions& options, int max_model_len) {
  const SamplingParams& params = options.params;
  Expected expected{.tokens = prompt};
  int num_output = 0;
  while (static_cast<int>(expected.tokens.size()) < max_model_len &&
         (params.max_tokens == 0 || num_output < params.max_tokens)) {
    const int32_t token = pretend_token(options.stream, static_cast<int>(expected.tokens.size()),
                                        SchedulerHarness::kVocabSize);
    expected.tokens.push_back(token);
    ++num_output;
    const bool stops = has(params.stop_token_ids, token) ||
                       (!params.ignore_eos && has(params.eos_token_ids, token));
    if (stops && num_output >= params.min_tokens) {
      expected.reason = FinishReason::kStop;
      break;
    }
  }
  return expected;
}

struct RandomCase {
  std::string name;
  HarnessOptions options;
  int max_prompt_tokens = 20;
  int max_unfinished = 12;
  int max_drafts = 0;  // asked for a sequence in a step
  int num_priorities = 1;
};

class SchedulerRandomTest : public ::testing::TestWithParam<RandomCase> {
 protected:
  size_t pick(size_t size) { return static_cast<size_t>(random_() % size); }
  bool one_in(size_t size) { return pick(size) == 0; }

  SchedulerHarness::SequenceOptions random_options() {
    SchedulerHarness::SequenceOptions options;
    SamplingParams& params = options.params;
    params.max_tokens = static_cast<int>(pick(14));
    params.min_tokens = params.max_tokens > 0 ? static_cast<int>(pick(params.max_tokens + 1)) : 0;
    if (one_in(2)) params.eos_token_ids = {static_cast<int32_t>(pick(4))};
    if (one_in(4)) params.stop_token_ids = {static_cast<int32_t>(pick(4)), 99};
    params.ignore_eos = one_in(3);
    params.n = one_in(3) ? 1 + static_cast<int>(pick(4)) : 1;
    options.use_prefix_cache = !one_in(8);
    options.priority = static_cast<int64_t>(pick(GetParam().num_priorities)) - 1;
    return options;
  }

  // Prompts share prefixes often: an old one cut short and continued, over few distinct tokens.
  std::vector<int32_t> random_prompt() {
    std::vector<int32_t> prompt = old_prompt_;
    prompt.resize(pick(prompt.size() + 1));
    const size_t num_tokens = 1 + pick(GetParam().max_prompt_tokens);
    while (prompt.size() < num_tokens) prompt.push_back(static_cast<int32_t>(pick(2)));
    prompt.resize(num_tokens);
    old_prompt_ = prompt;
    return prompt;
  }

  void add_request(SchedulerHarness& harness) {
    const std::vector<int32_t> prompt = random_prompt();
    SchedulerHarness::SequenceOptions options = random_options();
    for (int i = 0; i < options.params.n; ++i) {
      options.stream = one_in(4) ? 1 : random_();  // equal streams make equal outputs, shared too
      Sequence& sequence = harness.add(prompt, options);
      if (i == 0) options.leader = &sequence;
      expected_[&sequence] = run_alone(prompt, options, harness.options().max_model_len);
    }
  }

  void end(SchedulerHarness& harness, Sequence& sequence) {
    num_hits_ += sequence.num_cached_prompt_tokens > 0;
    num_preemptions_ += sequence.num_preemptions;
    expected_.erase(&sequence);
    harness.forget(sequence);
  }

  void abort_one(SchedulerHarness& harness) {
    std::vector<Sequence*> unfinished = harness.running();
    const std::vector<Sequence*> waiting = harness.waiting();
    unfinished.insert(unfinished.end(), waiting.begin(), waiting.end());
    if (unfinished.empty()) return;
    Sequence& sequence = *unfinished[pick(unfinished.size())];
    harness.abort(sequence);
    for (ExecutionPlan& plan : under_way_) {
      std::erase_if(plan.sequences,
                    [&](const auto& scheduled) { return scheduled.sequence == &sequence; });
    }
    EXPECT_EQ(std::get<Finished>(sequence.state).reason, FinishReason::kAbort);
    EXPECT_EQ(sequence.blocks.num_blocks(), 0);
    const std::vector<int32_t>& all = expected_.at(&sequence).tokens;
    EXPECT_TRUE(std::equal(sequence.tokens().begin(), sequence.tokens().end(), all.begin(),
                           all.begin() + sequence.num_tokens()));
    ++num_aborts_;
    end(harness, sequence);
  }

  // Few or many drafts in a step, more or less of them made, some of those trees.
  ExecutionPlan plan_with_drafts(SchedulerHarness& harness) {
    const size_t most = pick(GetParam().max_drafts + 1);
    const DraftBudget budget{
        .wanted = [&](const Sequence&, int) { return static_cast<int>(pick(most + 1)); },
        .most_held = one_in(2) ? 100 : static_cast<int>(pick(most + 1))};
    const ExecutionPlan plan = harness.plan(budget, [&](const ScheduledSequence& scheduled) {
      const int draft_budget = scheduled.draft_budget;
      return one_in(2) ? draft_budget : static_cast<int>(pick(draft_budget + 1));
    });
    for (const ScheduledSequence& scheduled : plan.sequences) {
      num_drafting_ += max_accepted(scheduled) > 0;
    }
    return plan;
  }

  static int max_accepted(const ScheduledSequence& scheduled) {
    return std::min(scheduled.max_draft_depth, scheduled.num_rows - 1);
  }

  // Plans as many steps as may be under way.
  void plan(SchedulerHarness& harness) {
    while (static_cast<int>(under_way_.size()) < GetParam().options.config.num_groups) {
      ExecutionPlan plan = GetParam().max_drafts > 0 ? plan_with_drafts(harness) : harness.plan();
      if (plan.empty()) return;
      num_beside_ += plan.is_beside_others;
      for (const ScheduledSequence& scheduled : plan.sequences) {
        num_chained_ += scheduled.base_len > scheduled.sequence->num_computed_tokens;
      }
      under_way_.push_back(std::move(plan));
    }
  }

  void step(SchedulerHarness& harness) {
    for (const Sequence* sequence : harness.waiting()) {
      num_led_ += sequence->prefill_leader != nullptr;
    }
    plan(harness);
    if (under_way_.empty()) return;
    const ExecutionPlan plan = std::move(under_way_.front());
    under_way_.pop_front();
    std::map<const Sequence*, int> num_given;
    const std::vector<SequenceUpdate> updates = harness.advance(plan, [&](const auto& scheduled) {
      const int num_accepted = static_cast<int>(pick(max_accepted(scheduled) + 1));
      num_given[scheduled.sequence] = num_accepted + 1;
      return num_accepted;
    });
    ASSERT_EQ(updates.size(), plan.sequences.size());
    for (const SequenceUpdate& update : updates) {
      ASSERT_EQ(update.finished, update.sequence->is_finished());
      num_accepted_ += std::max(update.num_new_tokens - 1, 0);
      num_cut_ += update.num_new_tokens < num_given[update.sequence];
      if (!update.finished) continue;
      const Expected& expected = expected_.at(update.sequence);
      EXPECT_EQ(
          std::vector<int32_t>(update.sequence->tokens().begin(), update.sequence->tokens().end()),
          expected.tokens);
      EXPECT_EQ(std::get<Finished>(update.sequence->state).reason, expected.reason);
      ++num_finished_;
      end(harness, *update.sequence);
    }
  }

  std::mt19937 random_{23};
  std::vector<int32_t> old_prompt_;
  std::map<const Sequence*, Expected> expected_;
  std::deque<ExecutionPlan> under_way_;  // oldest first
  int64_t num_finished_ = 0, num_aborts_ = 0, num_preemptions_ = 0, num_hits_ = 0, num_led_ = 0;
  int64_t num_drafting_ = 0, num_accepted_ = 0, num_cut_ = 0;
  int64_t num_beside_ = 0, num_chained_ = 0;
};

TEST_P(SchedulerRandomTest, EverySequenceEndsWithTheTokensItGetsAlone) {
  constexpr int kNumOperations = 40000;  // times the number of cases
  const RandomCase& random_case = GetParam();
  SchedulerHarness harness(random_case.options);
  for (int operation = 0; operation < kNumOperations && !HasFailure(); ++operation) {
    const size_t kind = pick(100);
    if (kind < 25) {
      if (static_cast<int>(expected_.size()) < random_case.max_unfinished) add_request(harness);
    } else if (kind < 28) {
      abort_one(harness);
    } else if (kind < 29 && one_in(5)) {
      harness.scheduler().prefix_cache().reset();
      harness.check_integrity();
    } else {
      step(harness);
    }
  }
  for (int i = 0; i < 10000 && harness.scheduler().has_unfinished() && !HasFailure(); ++i) {
    step(harness);
  }
  EXPECT_TRUE(expected_.empty());
  harness.check_nothing_leaked();

  // The operations did reach what this is about.
  const bool caches = random_case.options.config.enable_prefix_caching;
  EXPECT_GT(num_finished_, 1000);
  EXPECT_GT(num_aborts_, 100);
  EXPECT_GT(num_preemptions_, 100);
  const int num_groups = random_case.options.config.num_groups;
  EXPECT_EQ(num_beside_ > 1000, num_groups > 1);
  // The next chunk of a prompt, before the one before it is committed.
  EXPECT_EQ(num_chained_ > 100, num_groups > 1);
  EXPECT_EQ(num_hits_ > 100, caches);
  EXPECT_EQ(num_led_ > 100, caches);
  EXPECT_EQ(num_drafting_ > 1000, random_case.max_drafts > 0);
  EXPECT_EQ(num_accepted_ > 1000, random_case.max_drafts > 0);
  EXPECT_EQ(num_cut_ > 50, random_case.max_drafts > 0);  // by a stop among accepted tokens
}

HarnessOptions options(SchedulerConfig config, int num_blocks, int max_model_len) {
  return {.config = config, .num_blocks = num_blocks, .max_model_len = max_model_len};
}

// The same pool and limits, with drafts.
RandomCase drafting(RandomCase random_case, int max_drafts) {
  random_case.name += "Drafting";
  random_case.max_drafts = max_drafts;
  return random_case;
}

// Several steps under way at once.
RandomCase in_groups(RandomCase random_case, int num_groups) {
  random_case.name += "Groups" + std::to_string(num_groups);
  random_case.options.config.num_groups = num_groups;
  return random_case;
}

// Of a model with recurrent layers: `num_cached` states of prefixes, one every `interval` tokens.
RandomCase recurrent(RandomCase random_case, int num_cached, int interval) {
  random_case.name += "Recurrent";
  random_case.options.config.states = {.num_slots = random_case.options.config.max_num_seqs,
                                       .num_cached = num_cached,
                                       .max_drafts = random_case.max_drafts,
                                       .interval = interval};
  return random_case;
}

RandomCase with_priorities(RandomCase random_case) {
  random_case.name += "Priorities";
  random_case.num_priorities = 3;
  return random_case;
}

const RandomCase kTinyPool{"TinyPool", options({.max_num_seqs = 8,
                                                .max_num_batched_tokens = 16,
                                                .block_size = 4,
                                                .enable_prefix_caching = true},
                                               10, 40)};
const RandomCase kTinyPoolNoPrefixCache{"TinyPoolNoPrefixCache",
                                        options({.max_num_seqs = 8,
                                                 .max_num_batched_tokens = 16,
                                                 .block_size = 4,
                                                 .enable_prefix_caching = false},
                                                10, 40)};
const RandomCase kRoomForExactlyOne{"RoomForExactlyOne", options({.max_num_seqs = 6,
                                                                  .max_num_batched_tokens = 64,
                                                                  .block_size = 2,
                                                                  .enable_prefix_caching = true},
                                                                 13, 26)};
const RandomCase kFewRows{"FewRows", options({.max_num_seqs = 8,
                                              .max_num_batched_tokens = 3,
                                              .block_size = 2,
                                              .enable_prefix_caching = true},
                                             16, 30)};
const RandomCase kOneTokenBlocks{"OneTokenBlocks", options({.max_num_seqs = 4,
                                                            .max_num_batched_tokens = 9,
                                                            .block_size = 1,
                                                            .enable_prefix_caching = true},
                                                           40, 32)};

INSTANTIATE_TEST_SUITE_P(
    Cases, SchedulerRandomTest,
    ::testing::Values(kTinyPool, kTinyPoolNoPrefixCache, kRoomForExactlyOne, kFewRows,
                      kOneTokenBlocks, drafting(kTinyPool, 6), drafting(kTinyPoolNoPrefixCache, 6),
                      drafting(kRoomForExactlyOne, 20), drafting(kFewRows, 2),
                      drafting(kOneTokenBlocks, 5), with_priorities(kTinyPool),
                      with_priorities(kRoomForExactlyOne), with_priorities(drafting(kFewRows, 2)),
                      in_groups(kTinyPool, 2), in_groups(kFewRows, 3),
                      in_groups(kOneTokenBlocks, 4), in_groups(drafting(kTinyPool, 6), 3),
                      in_groups(drafting(kFewRows, 2), 2), in_groups(with_priorities(kTinyPool), 2),
                      recurrent(drafting(kTinyPool, 6), 40, 4),
                      recurrent(drafting(kTinyPoolNoPrefixCache, 6), 0, 4),
                      recurrent(drafting(kRoomForExactlyOne, 20), 3, 8),
                      recurrent(drafting(kOneTokenBlocks, 5), 6, 3),
                      recurrent(in_groups(drafting(kTinyPool, 6), 3), 5, 12),
                      recurrent(in_groups(kFewRows, 3), 4, 1000)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace specdec::testing
