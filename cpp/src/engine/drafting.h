// How the engine drafts: asks the drafters in each step and tells them the outcomes of their
// drafts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/failure.h"
#include "engine/request.h"
#include "runtime/draft_models.h"
#include "runtime/pass_timing.h"
#include "sched/scheduler.h"
#include "specdec/acceptance_stats.h"
#include "specdec/engine.h"
#include "speculation/draft_schedule.h"
#include "speculation/drafters.h"
#include "speculation/static_tree.h"

namespace specdec {

// The tokens that one sequence got in a step, before they are appended.
struct StepRecord {
  CompletionState* completion = nullptr;
  const DraftTree* tree = nullptr;  // the verified tree, whoever drafted it; null: no drafts
  // Set in a step planned ahead, for which the device drafts: number of draft model passes, or 0.
  std::optional<int> num_passes = std::nullopt;
  std::span<const int> accepted = {};    // nodes of the tree
  std::span<const int32_t> tokens = {};  // empty where it does not sample
};

// The device's drafting in a step planned ahead.
struct PassesAhead {
  int num_passes = 0;  // of the draft model
  DraftPlan drafting;
};

class Drafting {
 public:
  // The models have their caches, with the blocks of the pool. Both must outlive this object.
  // `threads` is borrowed. Drafts of up to `num_groups` steps may be under way at once.
  Drafting(const SpeculativeConfig& config, int vocab_size, DraftModels& models,
           const BlockPool& pool, ThreadPool& threads, int num_groups);

  // Times passes of the models, so that the first drafts are no longer than pays. Before the first
  // step; nothing where lengths are fixed. `blocks` hold no sequence.
  void time_passes(ModelRunner& target, const DraftModels& models, int max_rows,
                   const BlockTable& blocks, PassClock clock);

  // The drafts (tree nodes) of the step being planned. Valid while this object is.
  DraftBudget budget() const;
  // Returns the draft plan of the step, which the later calls for this step take.
  DraftPlan begin_step(const ExecutionPlan& plan);
  // Drafts a tree for every sequence of the plan with a draft budget, and writes its size to the
  // plan. Returns the sequences for which drafting failed; these have no drafts.
  std::vector<Failure> draft(ExecutionPlan& plan, DraftPlan& step,
                             const std::function<CompletionState&(const Sequence&)>& completion_of);
  // The tree of plan.sequences[index]; null without drafts. Valid until as many later plans as
  // there are groups have been drafted for.
  const DraftTree* tree(size_t index) const;

  // The drafter whose model runs in device steps; null without one.
  ModelDrafter* device_drafter() const { return device_drafter_; }
  // Longest draft of a sequence in any step from now on.
  int longest_draft(const Sequence& sequence) const {
    return sequence.max_draft_depth(config_.num_speculative_tokens);
  }
  // Number of draft model passes in a device step, at most `limit`. The model has not seen
  // `num_unseen` tokens of each sequence.
  PassesAhead plan_passes(std::span<const Sequence* const> sequences, int limit, int num_unseen);

  // Every sequence of a step.
  void record(DraftPlan& step, const StepRecord& record);
  // The draft model's passes over so many rows in a device step took so long, all together.
  void record_passes(DraftPlan& step, int num_passes, int num_rows, double seconds);
  // The rest of a step, from the target's pass on, took so long.
  void end_step(const DraftPlan& step, double seconds);
  // Called when a sequence ends, for whatever reason.
  void finish(const Sequence& sequence);

  TreeShape tree_shape() const { return tree_shape_of(config_); }
  void fill_stats(EngineStats& stats) const;

 private:
  std::unique_ptr<Drafter> make_drafter(int id, int vocab_size, DraftModels& models,
                                        const BlockPool& pool, ThreadPool& threads);
  std::vector<DraftedToken> drafted_tokens(const StepRecord& record) const;
  DraftRequest request_for(const ScheduledSequence& scheduled, int max_depth,
                           CompletionState& completion, DraftTree& tree) const;

  SpeculativeConfig config_;
  DraftSchedule schedule_;
  StaticTree static_tree_;
  ModelDrafter* device_drafter_ = nullptr;
  int prediction_drafter_ = 0;  // which of the drafters reads predictions
  std::unique_ptr<Drafters> drafters_;

  // By group in turn, then by index in the plan; kept for their memory.
  std::vector<std::vector<DraftTree>> trees_;
  size_t group_ = 0;
  std::vector<bool> has_tree_;  // of the last plan

  AcceptanceStats acceptance_;
  std::vector<DrafterStats> drafter_stats_;
};

}  // namespace specdec
