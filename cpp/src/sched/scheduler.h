// Decides, before every step, which rows run: plan() out, advance() in. Pure: no device, no model,
// no clock. Decoding sequences go first, then prompt chunks of running sequences, then admissions,
// each in order of precedence (priority, then arrival), all within max_num_batched_tokens rows and
// max_num_seqs sequences. Drafts of decoding sequences get blocks last, so they neither preempt nor
// keep anyone out; of the rows that single decoding rows leave, up to half are theirs where they
// were needed lately, and whatever prompts do not use.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/step_rules.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "sched/sequence.h"

namespace specdec {

struct SchedulerConfig {
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int block_size = 16;
  bool enable_prefix_caching = true;
  // Steps that may be under way at once. Where they are several, each takes its share of the
  // sequences, so that there are some left for the others.
  int num_groups = 1;
};

// Rows of one sequence in one step: tokens [base_len, base_len + num_rows).
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int base_len = 0;  // not known of a step planned ahead
  int num_rows = 0;
  bool samples = false;  // the last row is the sequence's last token, so it yields the next one
  // Rows, with blocks behind them, that drafts may take after the one row of a decoding sequence.
  // A tree's nodes count one each; those past max_num_tokens() serve its branches only.
  int num_draft_slots = 0;
  int max_draft_depth = 0;   // longest path to draft: at most num_draft_slots
  int num_tokens_ahead = 0;  // its share of the sequence's num_tokens_under_way
};

// What a step may draft.
struct DraftBudget {
  // How many draft rows a decoding sequence may get at most, given how many sequences decode. Asked
  // once a step for each of them; where it is empty nothing is drafted.
  std::function<int(const Sequence& sequence, int num_decoding)> slots;
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
  int num_draft_slots = 0;           // of all sequences; num_rows does not include them
  int num_decoding = 0;              // as DraftBudget::slots was told
  std::vector<Sequence*> preempted;  // lost their blocks while this plan was made
  bool is_beside_others = false;     // other steps that plan() has made are under way
  bool empty() const { return sequences.empty(); }

  // Makes rows of `num_drafts` of the draft slots of sequences[index], before the step runs.
  void set_num_drafts(size_t index, int num_drafts);
};

// What the step produced for plan.sequences[i]: tokens in order, empty where it does not sample.
struct StepResult {
  std::vector<std::vector<int32_t>> tokens;
};

// What became of plan.sequences[i]: how many of its tokens were kept (a stop token cuts the rest).
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

  // Lets go of all sequences without a look at them: after an error that may have left anything.
  // They keep their blocks.
  void forget_all() noexcept;

  // The next step. Reserves blocks for every row; preempts the running sequences that go last
  // when there are none left, and admits none then. The running sequence that goes first always
  // gets a row. Empty only when nothing is left to run. Without a budget nothing is drafted.
  // While steps that plan() has made are under way, it goes on with sequences that do not wait for
  // these steps; it preempts none, and may find nothing to run.
  ExecutionPlan plan(const DraftBudget& budget = {});
  // A step of decoding, planned while the outcomes of steps under way are not known: one row for
  // each running sequence and a draft tree of `shape`, up to `max_depth` levels deep, below it.
  // Reserves blocks for the slots it may write to, whatever the steps under way bring. Nothing when
  // there are not enough blocks: plan() has to preempt once those steps are committed. Requires
  // !has_other_work().
  std::optional<ExecutionPlan> plan_ahead(int max_depth, const TreeShape& shape);
  // Commits a step, in the order they were planned; a sequence that ended meanwhile is left out of
  // `plan` and `result` by the caller. KV of the rows is written, tokens are appended, full blocks
  // enter the prefix cache, finished sequences leave. A sequence with n draft rows may get up to n
  // + 1 tokens, but no more than max_draft_depth + 1 (the KV of those accepted lies in place); its
  // blocks past them go back, unless steps under way may write there.
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
  // Of so many sequences, those that one step may take.
  int share(int num_sequences) const;
  void plan_decodes(ExecutionPlan& plan);
  // Asks for every decoding sequence what it would draft, and holds rows for that.
  void request_drafts(const DraftBudget& budget, ExecutionPlan& plan) const;
  // Cuts the requests down to the rows and blocks that are left, and reserves them: first equal
  // shares of the rows, beginning with another sequence in every step, so that none waits for those
  // before it; then what is left, in order of precedence.
  void grant_drafts(ExecutionPlan& plan);
  void grant(int num_slots, ScheduledSequence& scheduled, ExecutionPlan& plan);
  // Both for up to `most` sequences in all.
  void plan_chunks(ExecutionPlan& plan, int& most);
  void plan_admissions(ExecutionPlan& plan, int& most);
  bool try_admit(Sequence& sequence, ExecutionPlan& plan);
  // Blocks for up to `max_rows` more rows of a running sequence. Returns how many rows there is
  // room for: at least one, preempting for it if need be, or 0 when the sequence itself was
  // preempted, or has to wait for blocks of steps under way.
  int reserve_rows(Sequence& sequence, int max_rows, ExecutionPlan& plan);
  void preempt_last(ExecutionPlan& plan);
  static void schedule(Sequence& sequence, int num_rows, ExecutionPlan& plan);
  static void unschedule(Sequence& sequence, ExecutionPlan& plan);

  SequenceUpdate commit(const ScheduledSequence& scheduled, const std::vector<int32_t>& tokens,
                        const FinishHook& on_finish);
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
  PrefixCache prefix_cache_;
  std::deque<Sequence*> waiting_;                           // by precedence
  std::vector<Sequence*> running_;                          // by precedence
  std::unordered_map<const Sequence*, int> num_followers_;  // of leaders that have some
  size_t next_to_draft_ = 0;  // of a step's drafting sequences, the one to get its share first
};

}  // namespace specdec
