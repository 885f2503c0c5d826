// A scheduler, its pool, and a pretend model that notices every wrong decision: the KV of a token
// is a number that stands for the whole prefix it was computed from, so a row that would attend to
// a block of another prefix, a reused block or one not yet written is found out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "sched/scheduler.h"

namespace specdec::testing {

// Stands for the tokens up to and including `token`, where `before` stands for those before it;
// odd.
inline uint64_t content_after(uint64_t before, int32_t token) {
  return (before * 1000003 + static_cast<uint64_t>(token) + 1) | 1;
}

// The recurrent states after the plans executed so far: what each slot and each record has read.
class ShadowStates {
 public:
  explicit ShadowStates(const StateConfig& config)
      : slots_(config.total_slots()), records_(config.num_records(), kNone) {}

  void execute(const ExecutionPlan& plan) {
    std::map<int, int> num_users;  // sequences that read or store a slot
    for (const ScheduledSequence& scheduled : plan.sequences) {
      const StateAccess& access = scheduled.states;
      if (slots_.empty()) {
        ASSERT_TRUE(access.stores.empty() && scheduled.kept_states.empty());
        continue;
      }
      std::set<int> used;
      if (access.slot_in >= 0) used.insert(access.slot_in);
      for (const StateStore& store : access.stores) used.insert(store.slot);
      for (const int slot : used) ++num_users[slot];
      run(scheduled);
    }
    for (const auto& [slot, count] : num_users) {
      // A cached state may be read by several.
      ASSERT_TRUE(count == 1 || !stored_.contains(slot)) << "slot " << slot;
    }
    stored_.clear();
  }

  void accept(const ScheduledSequence& scheduled, std::span<const int> accepted,
              std::span<const int32_t> tokens) {
    for (size_t i = 0; i < accepted.size() && !slots_.empty(); ++i) {
      records_.at(scheduled.states.first_record + accepted[i] - 1) = tokens[i];
    }
  }

 private:
  static constexpr int32_t kNone = -1;

  void run(const ScheduledSequence& scheduled) {
    const Sequence& sequence = *scheduled.sequence;
    const StateAccess& access = scheduled.states;
    const int num_pending = static_cast<int>(access.pending.size());
    const int begin = scheduled.base_len - num_pending;
    std::vector<uint64_t> contents = {1};  // of the sequence's first i tokens
    for (const int32_t token : sequence.tokens()) {
      contents.push_back(content_after(contents.back(), token));
    }
    uint64_t content = access.slot_in < 0 ? 1 : slots_.at(access.slot_in);
    ASSERT_EQ(content, contents[begin]) << "sequence " << sequence.ordinal;
    for (int i = 0; i < num_pending; ++i) {
      content = content_after(content, records_.at(access.pending[i]));
      ASSERT_EQ(content, contents[begin + i + 1]) << "record " << i;
    }
    const int num_committed = access.num_committed_rows();
    ASSERT_GE(num_committed, 1);
    ASSERT_LE(scheduled.base_len + num_committed, sequence.num_tokens());
    int previous = 0;
    for (const StateStore& store : access.stores) {
      ASSERT_GE(store.num_tokens, std::max(previous, 1));
      previous = store.num_tokens;
      slots_.at(store.slot) = contents.at(begin + store.num_tokens);
      stored_.insert(store.slot);
    }
    ASSERT_EQ(access.stores.back().slot, sequence.states.slot);
    for (int draft = 0; draft < scheduled.num_rows - num_committed; ++draft) {
      const int record = access.first_record + draft;
      ASSERT_EQ(std::ranges::count(access.pending, record), 0) << "written while it is read";
      records_.at(record) = kNone;
    }
  }

  std::vector<uint64_t> slots_;
  std::vector<int32_t> records_;  // the draft's token once it is accepted
  std::set<int> stored_;          // slots, by the plan
};

// The contents of KV slots after the plans executed so far.
class ShadowKv {
 public:
  ShadowKv(int num_blocks, int block_size)
      : slots_(static_cast<size_t>(num_blocks + 1) * block_size) {}

  void execute(const ExecutionPlan& plan) {
    for (const ScheduledSequence& scheduled : plan.sequences) {
      const Sequence& sequence = *scheduled.sequence;
      const int begin = scheduled.base_len;
      const int end = begin + scheduled.num_rows;
      ASSERT_LE(end, sequence.blocks.capacity_tokens());
      const std::vector<uint64_t> content = prefix_contents(sequence.tokens());
      for (int i = begin; i < std::min(end, sequence.num_tokens()); ++i) {
        slots_[sequence.blocks.slot(i)] = content[i];
      }
      for (int i = sequence.num_tokens(); i < end; ++i) slots_[sequence.blocks.slot(i)] = kDraft;
    }
    for (const ScheduledSequence& scheduled : plan.sequences) {
      check(*scheduled.sequence, scheduled.base_len + scheduled.num_rows);
    }
  }

  // Moves the KV of accepted drafts into place. They are all `new_tokens` but the last, which has
  // no KV yet.
  void accept(const Sequence& sequence, std::span<const int32_t> new_tokens) {
    if (new_tokens.empty()) return;
    std::vector<int32_t> tokens(sequence.tokens().begin(), sequence.tokens().end());
    tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end() - 1);
    const std::vector<uint64_t> content = prefix_contents(tokens);
    for (size_t i = sequence.num_tokens(); i < tokens.size(); ++i) {
      slots_[sequence.blocks.slot(static_cast<int>(i))] = content[i];
    }
  }

  void check(const Sequence& sequence, int num_tokens) const {
    const std::vector<uint64_t> content = prefix_contents(sequence.tokens());
    for (int i = 0; i < std::min(num_tokens, sequence.num_tokens()); ++i) {
      ASSERT_EQ(slots_[sequence.blocks.slot(i)], content[i])
          << "sequence " << sequence.ordinal << ", token " << i;
    }
  }

 private:
  static constexpr uint64_t kDraft = 2;  // of a drafted token; a prefix's content is odd

  // [i] stands for tokens 0..i; never 0.
  static std::vector<uint64_t> prefix_contents(std::span<const int32_t> tokens) {
    std::vector<uint64_t> contents;
    uint64_t content = 1;
    for (const int32_t token : tokens) {
      content = content_after(content, token);
      contents.push_back(content);
    }
    return contents;
  }

  std::vector<uint64_t> slots_;
};

struct HarnessOptions {
  SchedulerConfig config;
  int num_blocks = 16;
  int max_model_len = 64;
};

// The token the pretend model gives a sequence at a position, from a stream of its own.
inline int32_t pretend_token(uint64_t stream, int position, int vocab_size) {
  uint64_t bits = (stream * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(position) << 32);
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<int32_t>((bits >> 33) % static_cast<uint64_t>(vocab_size));
}

using Rows = std::vector<std::pair<uint64_t, int>>;  // ordinal, rows

inline Rows rows_of(const ExecutionPlan& plan) {
  Rows rows;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    rows.emplace_back(scheduled.sequence->ordinal, scheduled.num_rows);
  }
  return rows;
}

// Tokens first, first + 1, ...
inline std::vector<int32_t> prompt_of(int num_tokens, int32_t first = 100) {
  std::vector<int32_t> prompt(num_tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

inline SamplingParams with_max_tokens(int max_tokens) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  return params;
}

class SchedulerHarness {
 public:
  struct SequenceOptions {
    SamplingParams params = {};
    const Sequence* leader = nullptr;
    bool use_prefix_cache = true;
    uint64_t stream = 0;
    int64_t priority = 0;
  };

  explicit SchedulerHarness(const HarnessOptions& options)
      : options_(options),
        pool_(options.num_blocks),
        scheduler_(options.config, pool_),
        kv_(options.num_blocks, options.config.block_size),
        states_(options.config.states) {}

  Sequence& add(std::vector<int32_t> prompt, const SequenceOptions& options) {
    auto entry = std::make_unique<Entry>(next_ordinal_++, std::move(prompt), options, options_);
    Sequence& sequence = entry->sequence;
    sequence.prefill_leader = options.leader;
    sequence.use_prefix_cache = options.use_prefix_cache;
    sequence.priority = options.priority;
    entries_.push_back(std::move(entry));
    scheduler_.add(sequence);
    check_integrity();
    return sequence;
  }
  Sequence& add(std::vector<int32_t> prompt) { return add(std::move(prompt), {}); }

  void abort(Sequence& sequence) {
    scheduler_.finish(sequence, FinishReason::kAbort);
    check_integrity();
  }

  // Plans a step and checks the plan against the rules. Then drafts: pick_drafts says how many of a
  // sequence's draft slots become rows (without it: none). Then the pretend model executes the
  // rows.
  using PickDrafts = std::function<int(const ScheduledSequence& scheduled)>;
  ExecutionPlan plan(const DraftBudget& budget = {}, const PickDrafts& pick_drafts = {}) {
    const std::vector<Sequence*> running_before = running();
    const int num_decoding_before = num_decoding_now();
    Wishes wishes;
    ExecutionPlan plan = scheduler_.plan(budget.wanted ? recorded(budget, wishes) : budget);
    check_integrity();
    check_plan(plan, running_before);
    EXPECT_LE(std::ranges::count_if(plan.sequences, decodes), share(num_decoding_before));
    check_drafts(plan, wishes);
    for (size_t i = 0; pick_drafts && i < plan.sequences.size(); ++i) {
      plan.set_num_drafts(i, pick_drafts(plan.sequences[i]));
    }
    kv_.execute(plan);
    states_.execute(plan);
    return plan;
  }

  // Settles a plan that was made ahead. The pretend model runs the last token of every sequence.
  void run_roots(ExecutionPlan& plan) {
    scheduler_.settle(plan);
    check_integrity();
    states_.execute(plan);
    ExecutionPlan roots = plan;
    for (ScheduledSequence& scheduled : roots.sequences) scheduled.num_rows = 1;
    kv_.execute(roots);
  }

  // Every sequence that samples gets the next tokens of its stream: one more than its drafts
  // accepted, whose number pick_accepted says, from 0 to max_draft_depth (without it: none).
  using PickAccepted = std::function<int(const ScheduledSequence& scheduled)>;
  std::vector<SequenceUpdate> advance(const ExecutionPlan& plan,
                                      const PickAccepted& pick_accepted = {}) {
    StepResult result;
    for (const ScheduledSequence& scheduled : plan.sequences) {
      std::vector<int32_t>& tokens = result.tokens.emplace_back();
      std::vector<int>& accepted = result.accepted.emplace_back();
      if (!scheduled.samples) continue;
      const int num_accepted = pick_accepted ? pick_accepted(scheduled) : 0;
      // The last nodes of the tree, so that others before them are rejected.
      for (int i = num_accepted; i > 0; --i) accepted.push_back(scheduled.num_rows - i);
      for (int i = 0; i <= num_accepted; ++i) tokens.push_back(next_token(*scheduled.sequence, i));
    }
    return advance(plan, result);
  }
  std::vector<SequenceUpdate> advance(const ExecutionPlan& plan, const StepResult& result) {
    for (size_t i = 0; i < std::min(plan.sequences.size(), result.tokens.size()); ++i) {
      kv_.accept(*plan.sequences[i].sequence, result.tokens[i]);
      if (result.accepted.empty()) continue;
      states_.accept(plan.sequences[i], result.accepted[i], result.tokens[i]);
    }
    std::vector<SequenceUpdate> updates = scheduler_.advance(plan, result);
    check_integrity();
    for (const Sequence* sequence : running()) kv_.check(*sequence, sequence->num_computed_tokens);
    return updates;
  }

  ExecutionPlan step() {
    ExecutionPlan executed = plan();
    advance(executed);
    return executed;
  }

  // Returns the number of steps it took.
  int run_to_end(int max_steps = 10000) {
    int num_steps = 0;
    while (scheduler_.has_unfinished() && num_steps < max_steps) {
      step();
      ++num_steps;
    }
    EXPECT_FALSE(scheduler_.has_unfinished()) << "still running after " << num_steps << " steps";
    return num_steps;
  }

  // Destroys a finished sequence, as its owner may do at once.
  void forget(const Sequence& sequence) {
    ASSERT_TRUE(sequence.is_finished());
    std::erase_if(entries_, [&](const auto& entry) { return &entry->sequence == &sequence; });
  }

  void check_integrity() const { ASSERT_NO_THROW(scheduler_.check_integrity()); }

  // After everything has finished: each block is free or evictable, and reset() returns them all.
  void check_nothing_leaked() {
    ASSERT_FALSE(scheduler_.has_unfinished());
    EXPECT_EQ(pool_.num_free(), pool_.num_blocks());
    EXPECT_EQ(scheduler_.prefix_cache().num_cached_blocks(), pool_.num_evictable());
    const int num_evictable = pool_.num_evictable();
    EXPECT_EQ(scheduler_.prefix_cache().reset(), num_evictable);
    EXPECT_EQ(pool_.num_evictable(), 0);
    EXPECT_EQ(pool_.num_free(), pool_.num_blocks());
    check_integrity();
  }

  // The token of the sequence's stream at a position.
  int32_t token_at(const Sequence& sequence, int position) const {
    return pretend_token(entry_of(sequence).options.stream, position, kVocabSize);
  }
  // The token `ahead` after the next.
  int32_t next_token(const Sequence& sequence, int ahead = 0) const {
    return token_at(sequence, sequence.num_tokens() + ahead);
  }

  std::vector<Sequence*> running() const {
    return collect([](const Sequence& sequence) { return sequence.is_running(); });
  }
  std::vector<Sequence*> waiting() const {
    return collect(
        [](const Sequence& sequence) { return !sequence.is_running() && !sequence.is_finished(); });
  }

  BlockPool& pool() { return pool_; }
  Scheduler& scheduler() { return scheduler_; }
  const HarnessOptions& options() const { return options_; }

  static constexpr int kVocabSize = 4;

 private:
  using Wishes = std::map<const Sequence*, int>;  // draft slots asked for

  struct Entry {
    Entry(uint64_t ordinal, std::vector<int32_t> prompt, const SequenceOptions& options,
          const HarnessOptions& harness)
        : options(options),
          sequence(ordinal, std::move(prompt), this->options.params, harness.config.block_size,
                   harness.max_model_len) {}
    SequenceOptions options;
    Sequence sequence;
  };

  const Entry& entry_of(const Sequence& sequence) const {
    return **std::ranges::find_if(entries_,
                                  [&](const auto& entry) { return &entry->sequence == &sequence; });
  }

  template <class Predicate>
  std::vector<Sequence*> collect(Predicate predicate) const {
    std::vector<Sequence*> sequences;
    for (const auto& entry : entries_) {
      if (predicate(entry->sequence)) sequences.push_back(&entry->sequence);
    }
    std::ranges::sort(sequences, {}, &Sequence::precedence);
    return sequences;
  }

  // The same budget, noting what it said and checking what it is asked.
  DraftBudget recorded(const DraftBudget& budget, Wishes& wishes) const {
    DraftBudget recorded = budget;
    recorded.wanted = [this, &budget, &wishes](const Sequence& sequence, int num_decoding) {
      EXPECT_TRUE(std::holds_alternative<Decoding>(sequence.state));
      if (options_.config.num_groups == 1) {
        EXPECT_EQ(num_decoding, num_decoding_now());
      }
      const int num_wanted = budget.wanted(sequence, num_decoding);
      EXPECT_TRUE(wishes.emplace(&sequence, num_wanted).second) << "asked twice";
      return num_wanted;
    };
    return recorded;
  }

  // The rules that hold for every plan.
  void check_plan(const ExecutionPlan& plan, const std::vector<Sequence*>& running_before) const {
    const std::vector<Sequence*> running_now = running();
    check_rows(plan);
    check_order(plan, running_before);

    if (plan.is_beside_others) {
      EXPECT_TRUE(plan.preempted.empty());
    } else {
      EXPECT_EQ(plan.empty(), running_now.empty() && waiting().empty());
    }
    EXPECT_LE(static_cast<int>(running_now.size()), options_.config.max_num_seqs);
    EXPECT_EQ(static_cast<int>(running_now.size()), scheduler_.num_running());
    EXPECT_EQ(static_cast<int>(waiting().size()), scheduler_.num_waiting());
    if (!running_before.empty() && options_.config.num_groups == 1) {
      EXPECT_TRUE(std::ranges::any_of(plan.sequences, [&](const ScheduledSequence& scheduled) {
        return scheduled.sequence == running_before.front();
      })) << "the first sequence got no row";
    }
    for (const Sequence* preempted : plan.preempted) {
      EXPECT_TRUE(std::holds_alternative<Preempted>(preempted->state));
      EXPECT_GT(preempted->precedence(), running_now.back()->precedence()) << "not the last";
    }
    check_admissions(plan, running_before);
  }

  void check_rows(const ExecutionPlan& plan) const {
    int num_rows = 0, num_prompt_rows = 0;
    std::set<const Sequence*> seen;
    for (const ScheduledSequence& scheduled : plan.sequences) {
      const Sequence* sequence = scheduled.sequence;
      EXPECT_TRUE(seen.insert(sequence).second);
      EXPECT_TRUE(sequence->is_running());
      EXPECT_GE(scheduled.num_rows, 1);
      EXPECT_GE(scheduled.base_len, sequence->num_computed_tokens);
      const int end = scheduled.base_len + scheduled.num_rows;
      EXPECT_EQ(end, sequence->next_row());
      EXPECT_LE(end, sequence->num_tokens());
      EXPECT_EQ(scheduled.samples, end == sequence->num_tokens());
      num_rows += scheduled.num_rows;
      for (int i = scheduled.base_len; i < end; ++i) {
        num_prompt_rows += i < sequence->num_prompt_tokens();
      }
    }
    EXPECT_EQ(plan.num_rows, num_rows);
    EXPECT_EQ(plan.num_prompt_rows, num_prompt_rows);
    EXPECT_LE(num_rows, options_.config.max_num_batched_tokens);
  }

  static bool decodes(const ScheduledSequence& scheduled) {
    return std::holds_alternative<Decoding>(scheduled.sequence->state);
  }
  int num_decoding_now() const {
    return static_cast<int>(std::ranges::count_if(running(), [](const Sequence* sequence) {
      return std::holds_alternative<Decoding>(sequence->state);
    }));
  }
  // The most sequences that one group takes of `num_sequences`.
  int share(int num_sequences) const {
    const int num_groups = options_.config.num_groups;
    return num_sequences / num_groups + (num_sequences % num_groups > 0 ? 1 : 0);
  }

  // Every decoding sequence that may draft gets the slots it asked for, or less where the step's
  // rows or the pool's blocks are used up, and never a block it has no use for.
  void check_drafts(const ExecutionPlan& plan, const Wishes& wishes) const {
    int draft_budget = 0;
    for (const ScheduledSequence& scheduled : plan.sequences) {
      draft_budget += scheduled.draft_budget;
    }
    EXPECT_EQ(plan.draft_budget, draft_budget);
    const int num_rows = plan.num_rows + draft_budget;
    EXPECT_LE(num_rows, options_.config.max_num_batched_tokens);

    for (const ScheduledSequence& scheduled : plan.sequences) {
      const Sequence& sequence = *scheduled.sequence;
      const int depth_left = sequence.max_num_tokens() - sequence.num_tokens() - 1;
      const auto wish = wishes.find(&sequence);
      const int num_wanted = wish == wishes.end() || depth_left == 0 ? 0 : wish->second;
      EXPECT_LE(scheduled.draft_budget, num_wanted);
      EXPECT_EQ(scheduled.max_draft_depth,
                std::min(scheduled.draft_budget, std::max(depth_left, 0)));
      if (!std::holds_alternative<Decoding>(sequence.state)) {
        EXPECT_EQ(scheduled.draft_budget, 0);
        continue;
      }
      const int num_slots = sequence.num_computed_tokens + 1 + scheduled.draft_budget;
      EXPECT_EQ(sequence.blocks.num_blocks(),
                num_blocks_for(num_slots, options_.config.block_size));
      if (scheduled.draft_budget < num_wanted) {
        const bool has_no_block =
            num_slots == sequence.blocks.capacity_tokens() && pool_.num_free() == 0;
        EXPECT_TRUE(has_no_block || num_rows == options_.config.max_num_batched_tokens);
      }
    }
  }

  // Decodes, then chunks of what ran before, then admissions; each in order of precedence.
  static void check_order(const ExecutionPlan& plan, const std::vector<Sequence*>& running_before) {
    std::pair<int, Sequence::Precedence> previous{-1, {}};
    for (const ScheduledSequence& scheduled : plan.sequences) {
      const bool decodes = std::holds_alternative<Decoding>(scheduled.sequence->state);
      const bool ran =
          std::ranges::find(running_before, scheduled.sequence) != running_before.end();
      const std::pair key{decodes ? 0 : ran ? 1 : 2, scheduled.sequence->precedence()};
      EXPECT_LT(previous, key);
      previous = key;
      if (decodes) {
        EXPECT_EQ(scheduled.num_rows, 1);
      }
    }
  }

  void check_admissions(const ExecutionPlan& plan,
                        const std::vector<Sequence*>& running_before) const {
    const Sequence* last_admitted = nullptr;
    for (const Sequence* sequence : running()) {
      if (std::ranges::find(running_before, sequence) != running_before.end()) continue;
      EXPECT_TRUE(plan.preempted.empty()) << "admitted beside a preemption";
      EXPECT_EQ(sequence->prefill_leader, nullptr);
      last_admitted = sequence;
    }
    if (last_admitted == nullptr) return;
    for (const Sequence* sequence : waiting()) {
      EXPECT_TRUE(sequence->prefill_leader != nullptr ||
                  sequence->precedence() > last_admitted->precedence())
          << sequence->ordinal << " was overtaken by " << last_admitted->ordinal;
    }
  }

  HarnessOptions options_;
  BlockPool pool_;
  Scheduler scheduler_;
  ShadowKv kv_;
  ShadowStates states_;
  uint64_t next_ordinal_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace specdec::testing
