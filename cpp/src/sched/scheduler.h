// Decides, before every step, which rows run: plan() out, advance() in. Pure: no device, no model,
// no clock. Decoding sequences go first, then prompt chunks of running sequences, then admissions in
// order of arrival, all within max_num_batched_tokens rows and max_num_seqs sequences.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
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
  int num_prompt_rows = 0;  // rows below num_prompt_tokens of their sequence
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
  // The pool must hold at least one sequence of maximal length; sequences are borrowed until they
  // finish.
  Scheduler(const SchedulerConfig& config, BlockPool& pool);

  void add(Sequence& sequence);
  // Takes a sequence out at any time between steps; its state becomes Finished{reason} and its
  // blocks go back.
  void finish(Sequence& sequence, FinishReason reason);

  // The next step. Reserves blocks for every row; preempts the newest running sequences when there
  // are none left. Empty only when nothing is left to run.
  ExecutionPlan plan();
  // Commits a step: KV of the rows is written, tokens are appended, full blocks enter the prefix
  // cache, finished sequences leave.
  std::vector<SequenceUpdate> advance(const ExecutionPlan& plan, const StepResult& result);

  bool has_unfinished() const { return !running_.empty() || !waiting_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  PrefixCache& prefix_cache() { return prefix_cache_; }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }

  void check_integrity() const;

 private:
  // (helpers of plan() and advance() are added here)
  SchedulerConfig config_;
  BlockPool& pool_;
  PrefixCache prefix_cache_;
  std::deque<Sequence*> waiting_;   // by ordinal
  std::vector<Sequence*> running_;  // by ordinal
};

}  // namespace specdec
