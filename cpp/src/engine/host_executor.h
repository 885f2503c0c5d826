// Runs any step pass by pass: packs its rows, runs the target over them, samples and verifies, and
// moves the KV of accepted drafts to where their positions belong.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/step.h"
#include "engine/step_sampler.h"
#include "runtime/batch_inputs.h"
#include "runtime/model_runner.h"

namespace specdec {

class HostExecutor final : public StepExecutor {
 public:
  // The runner is borrowed.
  HostExecutor(ModelRunner& runner, LogprobsMode logprobs_mode, const SpeculativeConfig& config);

  // Packs the rows. Model stages on other ranks start on them; all other work is done when the step
  // is waited for. An error for one sequence, while its rows are packed or sampled, becomes its
  // outcome's error; the step runs without that sequence.
  void launch(const Step& step) override;
  StepOutcome wait() override;
  int num_under_way() const { return static_cast<int>(under_way_.size()); }
  // The completion has ended: steps under way keep its rows, but sample none of them.
  void leave_out(const CompletionState& completion);

 private:
  struct Launched {
    BatchInputs inputs;
    std::vector<SequenceStep> steps;  // by index in the plan; without rows where packing failed
    StepOutcome outcome;
  };
  static int add_rows(BatchInputs& inputs, const SequenceStep& step, const StateAccess& states);
  void compact_kv(std::span<const SequenceStep> steps, std::span<const SequenceOutcome> outcomes);

  ModelRunner& runner_;
  StepSampler sampler_;
  std::deque<std::unique_ptr<Launched>> under_way_;  // oldest first
  std::vector<std::unique_ptr<Launched>> spare_;     // kept for their memory
};

}  // namespace specdec
