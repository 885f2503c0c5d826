// Invariants that hold between two steps, whatever was scheduled.
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/check.h"
#include "sched/by_precedence.h"
#include "sched/scheduler.h"

namespace specdec {

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  prefix_cache_.check_integrity();
  if (states_) states_->check_integrity(running_);
  check_waiting();
  check_running();
}

void Scheduler::check_waiting() const {
  std::unordered_map<const Sequence*, int> num_followers;
  const Sequence* previous = nullptr;
  for (const Sequence* sequence : waiting_) {
    SPECDEC_CHECK(previous == nullptr || previous->precedence() < sequence->precedence());
    previous = sequence;
    const bool is_preempted = std::holds_alternative<Preempted>(sequence->state);
    SPECDEC_CHECK(is_preempted || std::holds_alternative<Waiting>(sequence->state));
    SPECDEC_CHECK_EQ(is_preempted, sequence->num_preemptions > 0);
    SPECDEC_CHECK_EQ(sequence->blocks.num_blocks(), 0);
    SPECDEC_CHECK_EQ(sequence->num_computed_tokens, 0);
    const Sequence* leader = sequence->prefill_leader;
    if (leader == nullptr) continue;
    SPECDEC_CHECK(contains(waiting_, *leader) || contains(running_, *leader));
    SPECDEC_CHECK(leader->precedence() < sequence->precedence());
    SPECDEC_CHECK(!leader->has_prefilled());
    ++num_followers[leader];
  }
  SPECDEC_CHECK(num_followers == num_followers_);
}

void Scheduler::check_running() const {
  SPECDEC_CHECK_LE(num_running(), most_running());
  std::vector<int> ref_counts(static_cast<size_t>(pool_.num_blocks()) + 1);
  const Sequence* previous = nullptr;
  for (const Sequence* sequence : running_) {
    SPECDEC_CHECK(previous == nullptr || previous->precedence() < sequence->precedence());
    previous = sequence;
    SPECDEC_CHECK(sequence->is_running());
    SPECDEC_CHECK(sequence->prefill_leader == nullptr);
    SPECDEC_CHECK_LE(sequence->next_row(), sequence->blocks.capacity_tokens());
    SPECDEC_CHECK_LT(sequence->num_computed_tokens, sequence->num_tokens());
    SPECDEC_CHECK_LE(sequence->num_computed_tokens, sequence->blocks.capacity_tokens());
    if (std::holds_alternative<Decoding>(sequence->state)) {
      SPECDEC_CHECK_EQ(sequence->num_computed_tokens, sequence->num_tokens() - 1);
    }
    const std::span<const BlockId> ids = sequence->blocks.ids();
    for (size_t i = 0; i < ids.size(); ++i) {
      ++ref_counts[ids[i]];
      // Blocks that rows may still be written to are nobody else's.
      if (static_cast<int>(i) < sequence->num_computed_tokens / config_.block_size) continue;
      SPECDEC_CHECK_EQ(pool_.ref_count(ids[i]), 1);
      SPECDEC_CHECK(!pool_.is_cached(ids[i]));
    }
  }
  for (BlockId id = 1; id <= pool_.num_blocks(); ++id) {
    SPECDEC_CHECK_EQ(pool_.ref_count(id), ref_counts[id]);
  }
}

}  // namespace specdec
