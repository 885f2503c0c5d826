// One step of the engine between its plan and its commit, and what runs it. Two executors do: the
// host runs the passes one by one, a device runs a whole step of decoding as one launch. Both give
// the same outcome for the same step, so which of them runs a step is a question of speed alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/step_outcome.h"
#include "engine/failure.h"
#include "engine/request.h"
#include "sched/scheduler.h"
#include "speculation/draft_policy.h"
#include "speculation/draft_tree.h"

namespace specdec {

class StepExecutor;

struct Step {
  ExecutionPlan plan;
  // Parallel to plan.sequences. A completion may end while a step planned ahead is under way: its
  // pointers are valid at the launch, its ordinal at the commit.
  std::vector<uint64_t> ordinals;
  std::vector<CompletionState*> completions;
  std::vector<const DraftTree*> trees;  // drafted by the host, kept by Drafting; null: none
  DraftPlan drafting;                   // the draft policy's plan, if it has one
  // Set for a step planned before the outcomes of the steps under way are known: how many passes of
  // the draft model the device makes for it.
  std::optional<int> num_passes = std::nullopt;
  std::vector<Failure> failures;  // requests that end with this step
  double launch_time = 0;         // by now_seconds()
  StepExecutor* executor = nullptr;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Starts the step.
  virtual void launch(const Step& step) = 0;
  // Waits for the oldest step launched: one outcome for each sequence of its plan.
  virtual StepOutcome wait() = 0;
};

}  // namespace specdec
