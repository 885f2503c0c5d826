#include "sched/state_planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/step_rules.h"

namespace specdec {

StatePlanner::StatePlanner(const StateConfig& config, int block_size, bool caches)
    : config_(config),
      block_size_(block_size),
      interval_(num_blocks_for(std::max(config.interval, 1), block_size) * block_size) {
  SPECDEC_CHECK_GE(config.num_slots, 1);
  free_slots_.reserve(config.num_slots);
  for (int slot = config.num_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  if (caches) cached_.emplace(config.num_cached);
}

void StatePlanner::admit(Sequence& sequence, int num_cached, PrefixMatch& match) {
  SPECDEC_CHECK(!free_slots_.empty());
  const int slot = free_slots_.back();
  const int max_drafts = config_.max_drafts;
  sequence.states = {.slot = slot,
                     .source = std::move(match.state),
                     .num_tokens = num_cached,
                     .first_records = {2 * slot * max_drafts, (2 * slot + 1) * max_drafts},
                     .num_known_tokens = match.num_known_tokens};
  free_slots_.pop_back();
}

void StatePlanner::release(Sequence& sequence) noexcept {
  if (sequence.states.slot < 0) return;
  free_slots_.push_back(sequence.states.slot);
  sequence.states = {};
}

bool StatePlanner::reserve(int num_tokens, std::vector<KeptState>& kept) {
  if (!cached_) return false;
  std::optional<BlockRef> state = cached_->allocate();
  if (!state.has_value()) return false;
  kept.push_back({num_tokens, config_.num_slots + state->id() - 1, *std::move(state)});
  return true;
}

StateAccess StatePlanner::begin_rows(Sequence& sequence, int base_len, int num_rows) const {
  SequenceStates& states = sequence.states;
  SPECDEC_CHECK_EQ(states.num_tokens + static_cast<int>(states.pending.size()), base_len);
  states.num_tokens = base_len + num_rows;
  StateAccess access{
      .slot_in = states.slot, .pending = states.pending, .first_record = states.first_records[0]};
  if (!std::exchange(states.is_stored, true)) {
    access.slot_in = states.source ? config_.num_slots + states.source.id() - 1 : -1;
  }
  return access;
}

// A state is kept after every interval; at the end of the prompt's last full block before its last
// token, for those who ask the same again; and where the sequence leaves a text that is known, for
// others that begin with the same text. The latest one before an answer goes on is kept as well,
// for the conversation's next turn, and replaces the one before.
StateAccess StatePlanner::plan_rows(Sequence& sequence, int base_len, int num_rows, bool samples,
                                    std::vector<KeptState>& kept) {
  const SequenceStates& states = sequence.states;
  const int begin = states.num_tokens;
  const int end = base_len + num_rows;
  StateAccess access = begin_rows(sequence, base_len, num_rows);
  const int repeated = (sequence.num_tokens() - 1) / block_size_ * block_size_;
  const int latest = samples ? kept_tokens(begin, end, block_size_) : 0;
  const int first = samples && num_rows == 1 ? latest : (begin / block_size_ + 1) * block_size_;
  for (int num_tokens = first; num_tokens > 0 && num_tokens <= end; num_tokens += block_size_) {
    const bool keeps = is_milestone(num_tokens) || num_tokens == repeated ||
                       num_tokens == states.num_known_tokens || num_tokens == latest;
    if (!keeps) continue;
    if (!reserve(num_tokens, kept)) break;
    access.stores.push_back({num_tokens - begin, kept.back().slot});
  }
  access.stores.push_back({end - begin, states.slot});
  return access;
}

void StatePlanner::reserve_ahead(const Sequence& sequence, std::vector<KeptState>& kept) {
  const int num_tokens = sequence.num_tokens();
  // Each step under way commits a token at least.
  const bool is_next = sequence.num_tokens_under_way == 0;
  const int least = is_next ? sequence.states.num_tokens : num_tokens;
  const int most = num_tokens + sequence.num_tokens_under_way;
  if (kept_tokens(least, most, block_size_) > 0) reserve(/*num_tokens=*/0, kept);
}

StateAccess StatePlanner::plan_ahead(Sequence& sequence, std::vector<KeptState>& kept) const {
  const int begin = sequence.states.num_tokens;
  const int end = sequence.num_tokens();
  StateAccess access = begin_rows(sequence, end - 1, 1);
  if (const int num_tokens = kept_tokens(begin, end, block_size_); num_tokens == 0) {
    kept.clear();
  } else if (!kept.empty()) {
    kept.front().num_tokens = num_tokens;
    access.stores.push_back({num_tokens - begin, kept.front().slot});
  }
  access.stores.push_back({end - begin, sequence.states.slot});
  return access;
}

void StatePlanner::commit(Sequence& sequence, const StateAccess& access,
                          std::span<const int> accepted) const {
  SequenceStates& states = sequence.states;
  states.source = {};
  states.pending.clear();
  std::swap(states.first_records[0], states.first_records[1]);
  for (const int node : accepted) {
    SPECDEC_CHECK(node >= 1 && node <= config_.max_drafts);
    states.pending.push_back(access.first_record + node - 1);
  }
}

void StatePlanner::publish(Sequence& sequence, std::span<const KeptState> kept,
                           PrefixCache& cache) const {
  const auto tokens = [&](int count) { return sequence.tokens().first(count); };
  int& latest = sequence.states.num_latest_tokens;
  for (const KeptState& state : kept) {
    cache.insert_state(tokens(state.num_tokens), sequence.blocks, sequence.cache_salt, state.state);
    const bool is_of_answer = state.num_tokens >= sequence.num_prompt_tokens();
    if (!is_of_answer || is_milestone(state.num_tokens)) continue;
    if (latest > 0) cache.drop_state(tokens(latest), sequence.blocks, sequence.cache_salt);
    latest = state.num_tokens;
  }
}

void StatePlanner::check_integrity(std::span<Sequence* const> running) const {
  if (cached_) cached_->check_integrity();
  std::vector<int> num_owners(static_cast<size_t>(config_.num_slots));
  for (const int slot : free_slots_) ++num_owners.at(slot);
  for (const Sequence* sequence : running) ++num_owners.at(sequence->states.slot);
  for (const int count : num_owners) SPECDEC_CHECK_EQ(count, 1);
}

}  // namespace specdec
