// Decides, before every step, which rows run: plan() out, advance() in. Pure: no device, no model,
// no clock. Decoding sequences come first, then prompt chunks of running sequences, then
// admissions, each in order of precedence (priority, then arrival), all within
// max_num_batched_tokens rows and max_num_seqs sequences. Drafts of decoding sequences get blocks
// last, so they neither preempt a sequence nor delay its admission. Of the rows left after one row
// per decoding sequence, drafts get up to half where recent steps needed them, plus the rows that
// prompts do not use.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/step_rules.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "sched/sequence.h"
#include "sched/state_planner.h"

namespace specdec {

struct SchedulerConfig {
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int block_size = 16;
  bool enable_prefix_caching = true;
  // Steps that may be under way at once. If there are several, each takes its share of the
  // sequences, so that some are left for the others.
  int num_groups = 1;
  StateConfig states = {};
};

// Rows of one sequence in one step: tokens [base_len, base_len + num_rows).
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int base_len = 0;  // of a step planned ahead: since settle()
  int num_rows = 0;
  bool samples = false;  // the last row is the sequence's last token, so it yields the next one
  // Rows, with blocks reserved, that drafts may take after the one row of a decoding sequence. Each
  // tree node counts as one; rows past max_num_tokens() only serve branches of the tree.
  int draft_budget = 0;
  int max_draft_depth = 0;   // longest path to draft: at most draft_budget
  int num_tokens_ahead = 0;  // its share of the sequence's num_tokens_under_way
  // Of models with recurrent layers. Of a step planned ahead: since settle(), before which the
  // state that it may keep is known, if there is one.
  StateAccess states = {};
  std::vector<KeptState> kept_states = {};
};

// Limits on the drafts of a step.
struct DraftBudget {
  // The most draft rows for a decoding sequence, given the number of decoding sequences. Called
  // once per step for each of them; if empty, nothing is drafted.
  std::function<int(const Sequence& sequence, int num_decoding)> wanted;
  // Rows, of all drafts together, that prompts leave free at most. Drafts have more where prompts
  // do not use the rows.
  int most_held = std::numeric_limits<int>::max();
};

// Called with each sequence that a step finishes while it still has its blocks.
using FinishHook = std::function<void(const Sequence& sequence)>;

struct ExecutionPlan {
  std::vector<ScheduledSequence> sequences;
  int num_rows = 0;
  int num_prompt_rows = 0;           // rows below num_prompt_tokens of their sequence
  int draft_budget = 0;              // of all sequences; num_rows does not include them
  int num_decoding = 0;              // as DraftBudget::wanted was told
  std::vector<Sequence*> preempted;  // lost their blocks while this plan was made
  bool is_beside_others = false;     // other steps from plan() are under way
  bool empty() const { return sequences.empty(); }

  // Makes rows of `num_drafts` of the draft slots of sequences[index], before the step runs.
  void set_num_drafts(size_t index, int num_drafts);
};

// The tokens that the step produced for plan.sequences[i], in order; empty where it does not
// sample.
struct StepResult {
  std::vector<std::vector<int32_t>> tokens;
  // The nodes of its tree that were accepted, from the root down: needed of models with recurrent
  // layers; else it may be left empty.
  std::vector<std::vector<int>> accepted = {};
};

// The outcome for plan.sequences[i]: how many of its tokens were kept (a stop token cuts the rest).
struct SequenceUpdate {
  Sequence* sequence = nullptr;
  int num_new_tokens = 0;
  bool finished = false;
};

class Scheduler {
 public:
  // Borrows the pool, whose blocks belong to the scheduler's sequences alone. Neither more than
  // max_num_seqs sequences run nor more than have a row each in the steps of all groups.
  Scheduler(const SchedulerConfig& config, BlockPool& pool);

  // Queues a sequence, borrowed until it finishes. The pool must be able to hold it at its longest.
  // Its prefill_leader, if any, was added before it and has not finished.
  void add(Sequence& sequence);
  // Takes a sequence out at any time between steps; its state becomes Finished{reason} and its
  // blocks go back.
  void finish(Sequence& sequence, FinishReason reason);

  // Drops all sequences without reading them, after an error that may have left them in any state.
  // They keep their blocks.
  void forget_all() noexcept;

  // The next step. Reserves blocks for every row. When no blocks are left, it preempts running
  // sequences of the lowest precedence, and then admits none. The running sequence of the highest
  // precedence always gets a row. The plan is empty only when nothing is left to run. Without a
  // budget nothing is drafted. While earlier steps are under way, it plans only sequences that are
  // not in those steps; it then preempts none, and may find nothing to run.
  ExecutionPlan plan(const DraftBudget& budget = {});
  // A decoding step, planned before the outcomes of the steps under way are known: one row per
  // running sequence and below it a draft tree of `shape`, up to `max_depth` levels deep. Reserves
  // blocks for all slots that it may write, whatever those outcomes are. Empty when there are not
  // enough blocks: plan() has to preempt once those steps are committed. Requires
  // !has_other_work().
  std::optional<ExecutionPlan> plan_ahead(int max_depth, const TreeShape& shape);
  // Says of a step planned ahead which rows it had, once the steps before it are committed.
  void settle(ExecutionPlan& plan);
  // Commits a step; steps are committed in the order in which they were planned, and those planned
  // ahead are settled. The caller leaves sequences that ended meanwhile out of `plan` and `result`.
  // KV of the rows is written, tokens are appended, full blocks enter the prefix cache, finished
  // sequences leave. A sequence with n draft rows may get up to n + 1 tokens, but no more than
  // max_draft_depth + 1 (the KV of accepted drafts is already at its slots). Blocks past those
  // tokens are released, unless steps under way may write to them.
  std::vector<SequenceUpdate> advance(const ExecutionPlan& plan, const StepResult& result,
                                      const FinishHook& on_finish = {});

  // In order of precedence.
  std::span<Sequence* const> running() const { return running_; }
  // Whether plan() may have more to run than one row of each running sequence.
  bool has_other_work() const;
  bool has_unfinished() const { return !running_.empty() || !waiting_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  PrefixCache& prefix_cache() { return prefix_cache_; }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }

  void check_integrity() const;

 private:
  int rows_left(const ExecutionPlan& plan) const;  // neither planned nor held for drafts

  int most_running() const;
  // How many of `num_sequences` sequences one step may take.
  int share(int num_sequences) const;
  void plan_decodes(ExecutionPlan& plan);
  // Asks how much each decoding sequence would draft, and holds rows for the drafts.
  void request_drafts(const DraftBudget& budget, ExecutionPlan& plan) const;
  // Cuts the requested drafts to the rows and blocks that are left, and reserves these. First come
  // equal shares of the rows, starting with a different sequence in every step so that none is
  // always last; the remaining rows go in order of precedence.
  void grant_drafts(ExecutionPlan& plan);
  void grant(int wanted, ScheduledSequence& scheduled, ExecutionPlan& plan);
  // Both for up to `most` sequences in all.
  void plan_chunks(ExecutionPlan& plan, int& most);
  void plan_admissions(ExecutionPlan& plan, int& most);
  bool try_admit(Sequence& sequence, ExecutionPlan& plan);
  // Blocks for up to `max_rows` more rows of a running sequence. Returns how many rows there is
  // room for: at least one, preempting for it if need be, or 0 when the sequence itself was
  // preempted, or has to wait for blocks of steps under way.
  int reserve_rows(Sequence& sequence, int max_rows, ExecutionPlan& plan);
  void preempt_last(ExecutionPlan& plan);
  void schedule(Sequence& sequence, int num_rows, ExecutionPlan& plan);
  static void unschedule(Sequence& sequence, ExecutionPlan& plan);

  SequenceUpdate commit(const ScheduledSequence& scheduled, const std::vector<int32_t>& tokens,
                        std::span<const int> accepted, const FinishHook& on_finish);
  void enqueue(Sequence& sequence);
  void leave_running(Sequence& sequence);

  // Followers wait for their leader's first token. When that is there, or the leader ends before,
  // its followers are let go: all of them, or (`elect`) the first, which the others then follow.
  void follow_leader(Sequence& sequence);
  void unfollow(Sequence& sequence);
  void release_followers(const Sequence& leader, bool elect);

  void check_waiting() const;
  void check_running() const;

  SchedulerConfig config_;
  BlockPool& pool_;
  std::unique_ptr<StatePlanner> states_;  // of models with recurrent layers; else null
  PrefixCache prefix_cache_;
  std::deque<Sequence*> waiting_;                           // by precedence
  std::vector<Sequence*> running_;                          // by precedence
  std::unordered_map<const Sequence*, int> num_followers_;  // of leaders that have some
  size_t next_to_draft_ = 0;  // of a step's drafting sequences, the one to get its share first
};

}  // namespace specdec
