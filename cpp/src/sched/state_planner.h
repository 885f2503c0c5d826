// Decides where the recurrent states of sequences lie, how each step's rows continue them and which
// are kept in the prefix cache. Pure, as the scheduler.
//
// A running sequence has one slot. The rows of committed tokens update its state in the slot;
// drafts leave records, and the next step folds those of accepted drafts. So a rejected draft needs
// no rollback: its record is not named again.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/state_access.h"
#include "kv/prefix_cache.h"
#include "sched/sequence.h"

namespace specdec {

struct StateConfig {
  int num_slots = 0;    // of sequences; 0: the model has no recurrent layers
  int num_cached = 0;   // states of cached prefixes, whose slots follow; at least 1 with a cache
  int max_drafts = 0;   // of a sequence in a step
  int interval = 1024;  // tokens; a state is kept after each multiple of it, if it is one of blocks

  int total_slots() const { return num_slots + num_cached; }
  int num_records() const { return num_slots * 2 * max_drafts; }
};

// A state that a step stores for the prefix cache.
struct KeptState {
  int num_tokens =
      0;  // of its sequence, that the state has read; not known of a step planned ahead
  int slot = 0;
  BlockRef state;
};

class StatePlanner {
 public:
  // Without caching no state is kept.
  StatePlanner(const StateConfig& config, int block_size, bool caches);

  BlockPool* cached() { return cached_ ? &*cached_ : nullptr; }

  // Gives a sequence a slot. `match`: what the prefix cache has of its tokens, `num_cached` of
  // which it need not run.
  void admit(Sequence& sequence, int num_cached, PrefixMatch& match);
  void release(Sequence& sequence) noexcept;

  // Plans rows of committed tokens from `base_len` on: how they continue the state, and into `kept`
  // the states to cache. A step of decoding keeps one state at most (kept_tokens).
  StateAccess plan_rows(Sequence& sequence, int base_len, int num_rows, bool samples,
                        std::vector<KeptState>& kept);
  // The same for a step of decoding that is planned ahead, in two parts: before it is launched, a
  // state in `kept` if it may keep one; and once those before it are committed, the rest.
  void reserve_ahead(const Sequence& sequence, std::vector<KeptState>& kept);
  StateAccess plan_ahead(Sequence& sequence, std::vector<KeptState>& kept) const;
  // After a step has run: `accepted` are the nodes of the sequence's tree, from 1 on.
  void commit(Sequence& sequence, const StateAccess& access, std::span<const int> accepted) const;
  // Caches what the step stored; the blocks of those tokens are cached.
  void publish(Sequence& sequence, std::span<const KeptState> kept, PrefixCache& cache) const;

  // Throws InternalError where the running sequences and the free slots do not share all slots.
  void check_integrity(std::span<Sequence* const> running) const;

 private:
  bool is_milestone(int num_tokens) const { return num_tokens % interval_ == 0; }
  // Whether there was room for another state.
  bool reserve(int num_tokens, std::vector<KeptState>& kept);
  StateAccess begin_rows(Sequence& sequence, int base_len, int num_rows) const;

  StateConfig config_;
  int block_size_;
  int interval_;                     // a multiple of the block size
  std::vector<int> free_slots_;      // a stack
  std::optional<BlockPool> cached_;  // ids of slots of cached states
};

}  // namespace specdec
