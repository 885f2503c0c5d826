#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "sched/by_precedence.h"

namespace specdec {
namespace {

template <class State>
int count_in(std::span<Sequence* const> sequences) {
  return static_cast<int>(std::ranges::count_if(sequences, [](const Sequence* sequence) {
    return std::holds_alternative<State>(sequence->state);
  }));
}

int num_prompt_rows(const ScheduledSequence& scheduled) {
  const Sequence& sequence = *scheduled.sequence;
  return std::clamp(sequence.num_prompt_tokens() - scheduled.base_len, 0, scheduled.num_rows);
}

// Slots of a sequence that a step planned ahead may write to, whatever the steps under way bring.
// The branches of a tree may take slots past the sequence's longest.
int most_slots_ahead(const Sequence& sequence, int max_depth, const TreeShape& shape) {
  const int longest = sequence.max_num_tokens() - 1;  // of a sequence that goes on
  const int last = std::min(sequence.num_tokens() + sequence.num_tokens_under_way, longest);
  int most = last;
  for (int num_tokens = sequence.num_tokens(); num_tokens <= last; ++num_tokens) {
    const int depth = draft_depth_limit(max_depth, num_tokens, sequence.max_num_tokens());
    most = std::max(most, num_tokens + shape.num_nodes(depth));
  }
  return most;
}

std::unique_ptr<StatePlanner> make_states(const SchedulerConfig& config) {
  if (config.states.num_slots == 0) return nullptr;
  SPECDEC_CHECK_GE(config.states.num_slots, config.max_num_seqs);
  return std::make_unique<StatePlanner>(config.states, config.block_size,
                                        config.enable_prefix_caching);
}

}  // namespace

void ExecutionPlan::set_num_drafts(size_t index, int num_drafts) {
  ScheduledSequence& scheduled = sequences.at(index);
  SPECDEC_CHECK_GE(num_drafts, 0);
  SPECDEC_CHECK_LE(num_drafts, scheduled.draft_budget);
  if (scheduled.draft_budget == 0) return;
  num_rows += 1 + num_drafts - scheduled.num_rows;
  scheduled.num_rows = 1 + num_drafts;
}

Scheduler::Scheduler(const SchedulerConfig& config, BlockPool& pool)
    : config_(config),
      pool_(pool),
      states_(make_states(config)),
      prefix_cache_(pool, config.block_size, states_ ? states_->cached() : nullptr) {
  SPECDEC_CHECK_GE(config.max_num_seqs, 1);
  SPECDEC_CHECK_GE(config.max_num_batched_tokens, 1);
  SPECDEC_CHECK_GE(config.num_groups, 1);
}

void Scheduler::add(Sequence& sequence) {
  SPECDEC_CHECK(std::holds_alternative<Waiting>(sequence.state));
  SPECDEC_CHECK_EQ(sequence.num_output_tokens(), sequence.num_resumed_tokens);
  SPECDEC_CHECK_EQ(sequence.num_computed_tokens, 0);
  SPECDEC_CHECK_EQ(sequence.blocks.block_size(), config_.block_size);
  SPECDEC_CHECK_EQ(sequence.blocks.num_blocks(), 0);
  SPECDEC_CHECK_LE(num_blocks_for(sequence.max_num_tokens(), config_.block_size),
                   pool_.num_blocks());
  follow_leader(sequence);
  enqueue(sequence);
}

void Scheduler::finish(Sequence& sequence, FinishReason reason) {
  SPECDEC_CHECK(!sequence.is_finished());
  SPECDEC_CHECK(reason != FinishReason::kNone);
  if (sequence.is_running()) {
    leave_running(sequence);
  } else {
    unfollow(sequence);
    erase_sorted(waiting_, sequence);
  }
  sequence.state = Finished{reason, std::nullopt};
  release_followers(sequence, /*elect=*/true);
}

void Scheduler::forget_all() noexcept {
  waiting_.clear();
  running_.clear();
  num_followers_.clear();
}

ExecutionPlan Scheduler::plan(const DraftBudget& budget) {
  ExecutionPlan plan;
  plan.is_beside_others = std::ranges::any_of(
      running_, [](const Sequence* sequence) { return sequence->num_rows_under_way > 0; });
  plan_decodes(plan);
  if (budget.wanted) request_drafts(budget, plan);
  int most = share(count_in<Prefilling>(running_) + num_waiting());
  plan_chunks(plan, most);
  // A sequence that was just preempted would be admitted at once, and take the blocks that the
  // others need.
  if (plan.preempted.empty()) plan_admissions(plan, most);
  if (budget.wanted) grant_drafts(plan);
  SPECDEC_CHECK(!plan.empty() || !has_unfinished() || plan.is_beside_others);
  return plan;
}

std::optional<ExecutionPlan> Scheduler::plan_ahead(int max_depth, const TreeShape& shape) {
  SPECDEC_CHECK(!running_.empty() && !has_other_work());
  for (Sequence* sequence : running_) {
    const int num_slots = most_slots_ahead(*sequence, max_depth, shape);
    if (!sequence->blocks.reserve(pool_, num_slots)) return std::nullopt;
  }
  ExecutionPlan plan;
  const int draft_budget = shape.num_nodes(max_depth);
  for (Sequence* sequence : running_) {
    plan.sequences.push_back({.sequence = sequence,
                              .num_rows = 1 + draft_budget,
                              .samples = true,
                              .draft_budget = draft_budget,
                              .max_draft_depth = max_depth,
                              .num_tokens_ahead = 1 + max_depth});
    if (states_) states_->reserve_ahead(*sequence, plan.sequences.back().kept_states);
    sequence->num_tokens_under_way += 1 + max_depth;
    plan.num_rows += 1 + draft_budget;
  }
  return plan;
}

void Scheduler::settle(ExecutionPlan& plan) {
  for (ScheduledSequence& scheduled : plan.sequences) {
    if (scheduled.num_tokens_ahead == 0) continue;
    Sequence& sequence = *scheduled.sequence;
    scheduled.base_len = sequence.next_row();
    if (states_) scheduled.states = states_->plan_ahead(sequence, scheduled.kept_states);
  }
}

std::vector<SequenceUpdate> Scheduler::advance(const ExecutionPlan& plan, const StepResult& result,
                                               const FinishHook& on_finish) {
  SPECDEC_CHECK_EQ(result.tokens.size(), plan.sequences.size());
  std::vector<SequenceUpdate> updates;
  updates.reserve(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    std::span<const int> accepted;
    if (!result.accepted.empty()) accepted = result.accepted.at(i);
    updates.push_back(commit(plan.sequences[i], result.tokens[i], accepted, on_finish));
  }
  return updates;
}

// Whether there is room for the head of the queue is told without looking for its prompt in the
// prefix cache, so an admission may come a little later than it could.
bool Scheduler::has_other_work() const {
  const auto decodes = [](const Sequence* sequence) {
    return std::holds_alternative<Decoding>(sequence->state);
  };
  if (!std::ranges::all_of(running_, decodes)) return true;
  const auto head = std::ranges::find(waiting_, nullptr, &Sequence::prefill_leader);
  if (head == waiting_.end() || num_running() >= most_running()) return false;
  const bool was_preempted = std::holds_alternative<Preempted>((*head)->state);
  const int num_tokens = was_preempted
                             ? (*head)->num_tokens()
                             : std::min((*head)->num_tokens(), config_.max_num_batched_tokens);
  return num_blocks_for(num_tokens, config_.block_size) <= pool_.num_free();
}

int Scheduler::rows_left(const ExecutionPlan& plan) const {
  return config_.max_num_batched_tokens - plan.num_rows - plan.draft_budget;
}

int Scheduler::most_running() const {
  return std::min(config_.max_num_seqs, config_.max_num_batched_tokens * config_.num_groups);
}

int Scheduler::share(int num_sequences) const {
  return (num_sequences + config_.num_groups - 1) / config_.num_groups;
}

// running_ is walked by index in both passes: a preemption takes its last element away.
void Scheduler::plan_decodes(ExecutionPlan& plan) {
  int most = share(count_in<Decoding>(running_));
  for (size_t i = 0; i < running_.size() && rows_left(plan) > 0 && most > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!std::holds_alternative<Decoding>(sequence.state) || sequence.samples_under_way) continue;
    const int num_rows = reserve_rows(sequence, 1, plan);
    if (num_rows == 0) continue;
    schedule(sequence, num_rows, plan);
    --most;
  }
}

void Scheduler::request_drafts(const DraftBudget& budget, ExecutionPlan& plan) const {
  plan.num_decoding = static_cast<int>(plan.sequences.size());  // each that runs has its row
  int64_t num_wanted = 0;
  for (ScheduledSequence& scheduled : plan.sequences) {
    if (scheduled.sequence->max_draft_depth(1) == 0) continue;
    scheduled.draft_budget = budget.wanted(*scheduled.sequence, plan.num_decoding);
    if (states_) SPECDEC_CHECK_LE(scheduled.draft_budget, config_.states.max_drafts);
    SPECDEC_CHECK_GE(scheduled.draft_budget, 0);
    num_wanted += scheduled.draft_budget;
  }
  // Prompts can use at least the other half, rounded up: where a row is left, the oldest prompt
  // advances, however much is drafted.
  plan.draft_budget =
      static_cast<int>(std::min<int64_t>({num_wanted, budget.most_held, rows_left(plan) / 2}));
}

void Scheduler::grant_drafts(ExecutionPlan& plan) {
  struct Wish {
    ScheduledSequence* scheduled;
    int wanted;
  };
  std::vector<Wish> wishes;
  for (ScheduledSequence& scheduled : plan.sequences) {
    const int wanted = std::exchange(scheduled.draft_budget, 0);
    if (wanted > 0) wishes.push_back({&scheduled, wanted});
  }
  plan.draft_budget = 0;
  const size_t count = wishes.size();
  for (size_t i = 0; i < count; ++i) {
    const Wish& wish = wishes[(next_to_draft_ + i) % count];
    const auto num_left = static_cast<int>(count - i);
    const int share = (rows_left(plan) + num_left - 1) / num_left;
    grant(std::min(wish.wanted, share), *wish.scheduled, plan);
  }
  if (count > 0) next_to_draft_ = (next_to_draft_ + 1) % count;
  for (const Wish& wish : wishes) grant(wish.wanted, *wish.scheduled, plan);
}

// Gives a decoding sequence up to so many draft slots in all.
void Scheduler::grant(int wanted, ScheduledSequence& scheduled, ExecutionPlan& plan) {
  Sequence& sequence = *scheduled.sequence;
  const int num_tokens = sequence.num_tokens();  // its row is that of the last
  const int64_t capacity = sequence.blocks.capacity_tokens() +
                           static_cast<int64_t>(pool_.num_free()) * config_.block_size;
  const int num_before = std::exchange(scheduled.draft_budget, 0);
  plan.draft_budget -= num_before;
  scheduled.draft_budget =
      static_cast<int>(std::min<int64_t>({wanted, rows_left(plan), capacity - num_tokens}));
  SPECDEC_CHECK_GE(scheduled.draft_budget, num_before);
  SPECDEC_CHECK(sequence.blocks.reserve(pool_, num_tokens + scheduled.draft_budget));
  scheduled.max_draft_depth = sequence.max_draft_depth(scheduled.draft_budget);
  plan.draft_budget += scheduled.draft_budget;
}

// The next chunk of a prompt does not wait for the one before it.
void Scheduler::plan_chunks(ExecutionPlan& plan, int& most) {
  for (size_t i = 0; i < running_.size() && rows_left(plan) > 0 && most > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!std::holds_alternative<Prefilling>(sequence.state) || sequence.samples_under_way) continue;
    const int num_wanted = std::min(rows_left(plan), sequence.num_tokens() - sequence.next_row());
    const int num_rows = reserve_rows(sequence, num_wanted, plan);
    if (num_rows == 0) continue;
    schedule(sequence, num_rows, plan);
    --most;
  }
}

void Scheduler::plan_admissions(ExecutionPlan& plan, int& most) {
  for (auto next = waiting_.begin(); next != waiting_.end() && most > 0;) {
    if (num_running() >= most_running() || rows_left(plan) == 0) return;
    Sequence& sequence = **next;
    if (sequence.prefill_leader != nullptr) {
      ++next;
      continue;
    }
    if (!try_admit(sequence, plan)) return;
    next = waiting_.erase(next);
    --most;
  }
}

bool Scheduler::try_admit(Sequence& sequence, ExecutionPlan& plan) {
  PrefixMatch match;
  if (config_.enable_prefix_caching && sequence.use_prefix_cache) {
    // Not the last token: its row must run, for its logits.
    match = prefix_cache_.match(sequence.tokens(), sequence.num_tokens() - 1, sequence.cache_salt);
    sequence.blocks.adopt(std::move(match.blocks));
  }
  const int num_cached = sequence.blocks.capacity_tokens();
  const int num_rows = std::min(rows_left(plan), sequence.num_tokens() - num_cached);
  // A preempted sequence comes back when all of it fits: with less, the next block that one before
  // it needs would throw it out again.
  const bool was_preempted = std::holds_alternative<Preempted>(sequence.state);
  const int num_tokens_to_fit = was_preempted ? sequence.num_tokens() : num_cached + num_rows;
  const int num_missing =
      num_blocks_for(num_tokens_to_fit, config_.block_size) - sequence.blocks.num_blocks();
  if (num_missing > pool_.num_free()) {
    sequence.blocks.clear();
    return false;
  }
  SPECDEC_CHECK(sequence.blocks.reserve(pool_, num_cached + num_rows));
  if (states_) states_->admit(sequence, num_cached, match);
  sequence.num_computed_tokens = num_cached;
  if (!was_preempted) {
    sequence.num_cached_prompt_tokens = std::min(num_cached, sequence.num_prompt_tokens());
  }
  sequence.state = Prefilling{};
  insert_sorted(running_, sequence);
  schedule(sequence, num_rows, plan);
  return true;
}

int Scheduler::reserve_rows(Sequence& sequence, int max_rows, ExecutionPlan& plan) {
  while (true) {
    const int64_t capacity = sequence.blocks.capacity_tokens() +
                             static_cast<int64_t>(pool_.num_free()) * config_.block_size;
    const int64_t num_rows = std::min<int64_t>(max_rows, capacity - sequence.next_row());
    if (num_rows > 0) {
      const int num_tokens = sequence.next_row() + static_cast<int>(num_rows);
      SPECDEC_CHECK(sequence.blocks.reserve(pool_, num_tokens));
      return static_cast<int>(num_rows);
    }
    if (plan.is_beside_others) return 0;
    const bool is_last = running_.back() == &sequence;
    preempt_last(plan);
    if (is_last) return 0;
  }
}

void Scheduler::preempt_last(ExecutionPlan& plan) {
  SPECDEC_CHECK_GT(num_running(), 1);  // alone, a sequence has the whole pool
  Sequence& sequence = *running_.back();
  unschedule(sequence, plan);
  leave_running(sequence);
  sequence.state = Preempted{};
  sequence.num_computed_tokens = 0;
  ++sequence.num_preemptions;
  enqueue(sequence);
  plan.preempted.push_back(&sequence);
}

void Scheduler::schedule(Sequence& sequence, int num_rows, ExecutionPlan& plan) {
  SPECDEC_CHECK_EQ(sequence.num_tokens_under_way, 0);
  SPECDEC_CHECK(!sequence.samples_under_way);
  const int base_len = sequence.next_row();
  const bool samples = base_len + num_rows == sequence.num_tokens();
  plan.sequences.push_back(
      {.sequence = &sequence, .base_len = base_len, .num_rows = num_rows, .samples = samples});
  if (states_) {
    ScheduledSequence& scheduled = plan.sequences.back();
    scheduled.states =
        states_->plan_rows(sequence, base_len, num_rows, samples, scheduled.kept_states);
  }
  sequence.num_rows_under_way += num_rows;
  sequence.samples_under_way = samples;
  plan.num_rows += num_rows;
  plan.num_prompt_rows += num_prompt_rows(plan.sequences.back());
}

void Scheduler::unschedule(Sequence& sequence, ExecutionPlan& plan) {
  const auto entry = std::ranges::find(plan.sequences, &sequence, &ScheduledSequence::sequence);
  if (entry == plan.sequences.end()) return;
  plan.num_rows -= entry->num_rows;
  plan.num_prompt_rows -= num_prompt_rows(*entry);
  plan.sequences.erase(entry);
  sequence.num_rows_under_way = 0;
  sequence.samples_under_way = false;
}

SequenceUpdate Scheduler::commit(const ScheduledSequence& scheduled,
                                 const std::vector<int32_t>& tokens, std::span<const int> accepted,
                                 const FinishHook& on_finish) {
  Sequence& sequence = *scheduled.sequence;
  SPECDEC_CHECK(sequence.is_running());
  if (scheduled.num_tokens_ahead > 0) SPECDEC_CHECK_EQ(scheduled.base_len, sequence.next_row());
  SPECDEC_CHECK_GE(scheduled.num_rows, 1);
  sequence.num_tokens_under_way -= scheduled.num_tokens_ahead;
  SPECDEC_CHECK_GE(sequence.num_tokens_under_way, 0);
  SequenceUpdate update{.sequence = &sequence};
  const int num_full_before = sequence.num_computed_tokens / config_.block_size;
  const int num_rows_past_end =
      sequence.num_computed_tokens + scheduled.num_rows - sequence.num_tokens();
  const bool was_prefilled = sequence.has_prefilled();

  if (scheduled.samples) {
    SPECDEC_CHECK_GE(num_rows_past_end, 0);
    SPECDEC_CHECK(!tokens.empty());
    SPECDEC_CHECK_LE(num_rows_past_end, scheduled.draft_budget);
    SPECDEC_CHECK_LE(static_cast<int64_t>(tokens.size()),
                     std::min(num_rows_past_end, scheduled.max_draft_depth) + 1);
    sequence.num_rows_under_way = 0;
    sequence.samples_under_way = false;
    for (const int32_t token : tokens) {
      ++update.num_new_tokens;
      update.finished = sequence.append(token) != FinishReason::kNone;
      if (update.finished) break;
    }
    sequence.num_computed_tokens = sequence.num_tokens() - 1;  // the last has no KV yet
  } else {
    SPECDEC_CHECK_LT(num_rows_past_end, 0);
    SPECDEC_CHECK(tokens.empty());
    sequence.num_computed_tokens += scheduled.num_rows;
    sequence.num_rows_under_way -= scheduled.num_rows;
  }

  if (config_.enable_prefix_caching &&
      sequence.num_computed_tokens / config_.block_size > num_full_before) {
    prefix_cache_.insert(sequence.tokens().first(sequence.num_computed_tokens), sequence.blocks,
                         sequence.cache_salt);
  }
  if (states_) {
    states_->commit(sequence, scheduled.states, accepted);
    states_->publish(sequence, scheduled.kept_states, prefix_cache_);
  }
  if (update.finished) {
    if (on_finish) on_finish(sequence);
    leave_running(sequence);
  } else if (scheduled.samples) {
    sequence.state = Decoding{};
    if (sequence.num_tokens_under_way == 0) sequence.blocks.truncate(sequence.num_computed_tokens);
  }
  if (!was_prefilled && sequence.has_prefilled()) release_followers(sequence, /*elect=*/false);
  return update;
}

void Scheduler::enqueue(Sequence& sequence) { insert_sorted(waiting_, sequence); }

void Scheduler::leave_running(Sequence& sequence) {
  erase_sorted(running_, sequence);
  sequence.blocks.clear();
  if (states_) states_->release(sequence);
}

void Scheduler::follow_leader(Sequence& sequence) {
  const Sequence* leader = sequence.prefill_leader;
  if (leader == nullptr) return;
  // Followers come after their leader, so the head of the queue waits for a running sequence at
  // most.
  SPECDEC_CHECK(leader->precedence() < sequence.precedence());
  const bool can_share = config_.enable_prefix_caching && sequence.use_prefix_cache &&
                         sequence.num_prompt_tokens() > config_.block_size;
  if (!can_share || leader->is_finished() || leader->has_prefilled()) {
    sequence.prefill_leader = nullptr;
    return;
  }
  SPECDEC_CHECK(contains(waiting_, *leader) || contains(running_, *leader));
  ++num_followers_[leader];
}

void Scheduler::unfollow(Sequence& sequence) {
  if (sequence.prefill_leader == nullptr) return;
  const auto entry = num_followers_.find(sequence.prefill_leader);
  SPECDEC_CHECK(entry != num_followers_.end());
  if (--entry->second == 0) num_followers_.erase(entry);
  sequence.prefill_leader = nullptr;
}

void Scheduler::release_followers(const Sequence& leader, bool elect) {
  const auto entry = num_followers_.find(&leader);
  if (entry == num_followers_.end()) return;
  const int num_followers = entry->second;
  num_followers_.erase(entry);
  Sequence* elected = nullptr;
  int num_left = num_followers;
  for (auto next = position_of(waiting_, leader); num_left > 0; ++next) {
    SPECDEC_CHECK(next != waiting_.end());
    Sequence& sequence = **next;
    if (sequence.prefill_leader != &leader) continue;
    sequence.prefill_leader = elected;
    if (elect && elected == nullptr) elected = &sequence;
    --num_left;
  }
  if (elected != nullptr && num_followers > 1) num_followers_[elected] = num_followers - 1;
}

}  // namespace specdec
