// Runs any step pass by pass: packs its rows, runs the target over them, samples and verifies, and
// moves the KV of accepted drafts to where their positions belong.
#pragma once

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

  // What is thrown for one sequence while its rows are packed or sampled becomes its outcome's
  // error; the step runs without it.
  void launch(const Step& step) override;
  StepOutcome wait() override;

 private:
  int add_rows(const SequenceStep& step);
  void compact_kv(const std::vector<SequenceOutcome>& outcomes);

  ModelRunner& runner_;
  StepSampler sampler_;
  // The step under way; kept between steps for their memory.
  BatchInputs inputs_;
  std::vector<SequenceStep> steps_;  // by index in the plan
  StepOutcome outcome_;
};

}  // namespace specdec
