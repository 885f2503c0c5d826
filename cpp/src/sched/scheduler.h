// Decides, before every step, which rows run: plan() out, advance() in. Pure: no device, no model,
// no clock. Decoding sequences go first, then prompt chunks of running sequences, then admissions
// in order of arrival, all within max_num_batched_tokens rows and max_num_seqs sequences.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "sched/sequence.h"

namespace specdec {

struct SchedulerConfig {
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int block_size = 16;
  bool enable_prefix_caching = true;
};

// Rows of one sequence in one step: tokens [num_computed_tokens, num_computed_tokens + num_rows).
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int num_rows = 0;
  bool samples = false;  // the last row is the sequence's last token, so it yields the next one
};

struct ExecutionPlan {
  std::vector<ScheduledSequence> sequences;
  int num_rows = 0;
  int num_prompt_rows = 0;           // rows below num_prompt_tokens of their sequence
  std::vector<Sequence*> preempted;  // lost their blocks while this plan was made
  bool empty() const { return sequences.empty(); }
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
  // max_num_seqs sequences run nor more than max_num_batched_tokens: one is admitted only with a
  // row to spare after all that run had theirs.
  Scheduler(const SchedulerConfig& config, BlockPool& pool);

  // Queues a sequence, borrowed until it finishes. The pool must be able to hold it at its longest.
  // Its prefill_leader, if any, was added before it and has not finished.
  void add(Sequence& sequence);
  // Takes a sequence out at any time between steps; its state becomes Finished{reason} and its
  // blocks go back.
  void finish(Sequence& sequence, FinishReason reason);

  // The next step. Reserves blocks for every row; preempts the newest running sequences when there
  // are none left, and admits none then. The oldest running sequence always gets a row. Empty only
  // when nothing is left to run.
  ExecutionPlan plan();
  // Commits a step: KV of the rows is written, tokens are appended, full blocks enter the prefix
  // cache, finished sequences leave. A sequence with n rows past its last token may get up to n + 1
  // tokens (the KV of those accepted lies in place); its blocks past them go back.
  std::vector<SequenceUpdate> advance(const ExecutionPlan& plan, const StepResult& result);

  bool has_unfinished() const { return !running_.empty() || !waiting_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  PrefixCache& prefix_cache() { return prefix_cache_; }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }

  void check_integrity() const;

 private:
  int rows_left(const ExecutionPlan& plan) const;

  void plan_decodes(ExecutionPlan& plan);
  void plan_chunks(ExecutionPlan& plan);
  void plan_admissions(ExecutionPlan& plan);
  bool try_admit(Sequence& sequence, ExecutionPlan& plan);
  // Blocks for up to `max_rows` more rows of a running sequence. Returns how many rows there is
  // room for: at least one, preempting for it if need be, or 0 when the sequence itself was
  // preempted.
  int reserve_rows(Sequence& sequence, int max_rows, ExecutionPlan& plan);
  void preempt_newest(ExecutionPlan& plan);
  static void schedule(Sequence& sequence, int num_rows, ExecutionPlan& plan);
  static void unschedule(const Sequence& sequence, ExecutionPlan& plan);

  SequenceUpdate commit(const ScheduledSequence& scheduled, const std::vector<int32_t>& tokens);
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
  std::deque<Sequence*> waiting_;                           // by ordinal
  std::vector<Sequence*> running_;                          // by ordinal
  std::unordered_map<const Sequence*, int> num_followers_;  // of leaders that have some
};

}  // namespace specdec
