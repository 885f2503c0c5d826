// From the hidden states of a step to the tokens each sequence emits: samples rows, verifies
// drafts, gathers logprobs.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "backend/step_outcome.h"
#include "engine/request.h"
#include "runtime/model_runner.h"
#include "sched/scheduler.h"
#include "specdec/speculative_config.h"
#include "speculation/draft_tree.h"
#include "speculation/verification.h"

namespace specdec {

// One sequence of a step.
struct SequenceStep {
  CompletionState* completion = nullptr;  // null: nothing of it is sampled
  int num_rows = 0;
  bool samples = false;
  int base_len = 0;                 // position of the first row
  int first_row = 0;                // in the batch; a tree's root
  const DraftTree* tree = nullptr;  // null: no drafts
};

class StepSampler {
 public:
  // The runner is borrowed. `config` may be that of an engine without speculation.
  StepSampler(ModelRunner& runner, LogprobsMode logprobs_mode, const SpeculativeConfig& config,
              int max_distribution_rows);

  // To be called after the runner's forward pass; one outcome a step, in order.
  std::vector<SequenceOutcome> run(std::span<const SequenceStep> steps);

 private:
  // Throws when any of them fails. Changes nothing but this object's own buffers.
  std::vector<SequenceOutcome> run_together(std::span<const SequenceStep> steps);
  // Makes the masks of all rows that sample, one thread per request. A failure recurs when its row
  // is made.
  void make_masks(std::span<const SequenceStep> steps);
  // True when the rows of its drafts need distributions instead of samples.
  bool is_weighed(const SequenceStep& step) const;
  void add_prompt_rows(const SequenceStep& step);
  void add_node_rows(const SequenceStep& step);
  void read_samples(const SequenceStep& step, size_t first_sample, SequenceOutcome& outcome);
  // Verifies by distributions, as many sequences at a time as their rows fit in the buffer.
  void run_weighed(std::span<const SequenceStep> steps, std::vector<SequenceOutcome>& outcomes);
  void verify_group(std::span<const SequenceStep> steps, std::span<const size_t> group,
                    std::vector<SequenceOutcome>& outcomes);
  void add_logprobs(std::span<const SequenceStep> steps, std::span<const size_t> group,
                    std::vector<SequenceOutcome>& outcomes);

  ModelRunner& runner_;
  LogprobsMode logprobs_mode_;
  Verification verification_;
  std::vector<double> synthetic_rates_;
  int max_distribution_rows_;
  int vocab_size_;

  SampleBatch batch_;
  std::vector<float> distributions_;  // [rows of a group, vocab_size]
};

}  // namespace specdec
