#include "engine/host_executor.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/stopwatch.h"

namespace specdec {
namespace {

constexpr int kMaxDistributionRows = 64;  // whose distributions are held at once for rejection

}  // namespace

HostExecutor::HostExecutor(ModelRunner& runner, LogprobsMode logprobs_mode,
                           const SpeculativeConfig& config)
    : runner_(runner), sampler_(runner, logprobs_mode, config, kMaxDistributionRows) {}

void HostExecutor::launch(const Step& step) {
  outcome_ = {};
  outcome_.sequences.resize(step.plan.sequences.size());
  const Stopwatch watch(outcome_.target_seconds);
  steps_.clear();
  inputs_.clear();
  for (size_t i = 0; i < step.plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = step.plan.sequences[i];
    SequenceStep& sequence = steps_.emplace_back(SequenceStep{.completion = step.completions[i],
                                                              .num_rows = scheduled.num_rows,
                                                              .samples = scheduled.samples,
                                                              .tree = step.trees[i]});
    try {
      sequence.first_row = add_rows(sequence);
    } catch (...) {
      outcome_.sequences[i].error = std::current_exception();
      sequence = {.completion = sequence.completion};  // no rows, so nothing to sample
    }
  }
  runner_.forward(inputs_);
}

int HostExecutor::add_rows(const SequenceStep& step) {
  const Sequence& sequence = step.completion->sequence;
  const int base_len = sequence.num_computed_tokens;
  const DraftTree* tree = step.tree;
  if (tree == nullptr) {
    return inputs_.add_chain(sequence.tokens().subspan(base_len, step.num_rows), base_len,
                             sequence.blocks);
  }
  if (tree->is_chain()) return inputs_.add_chain(tree->tokens(), base_len, sequence.blocks);
  return inputs_.add_tree(tree->tokens(), tree->parents(), base_len, sequence.blocks);
}

StepOutcome HostExecutor::wait() {
  {
    const Stopwatch watch(outcome_.sample_seconds);
    const double head_before = runner_.head_seconds();
    std::vector<SequenceOutcome> sampled = sampler_.run(steps_);
    for (size_t i = 0; i < sampled.size(); ++i) {
      if (!outcome_.sequences[i].error) outcome_.sequences[i] = std::move(sampled[i]);
    }
    compact_kv(outcome_.sequences);
    // The head runs row group by row group inside the sampler, but belongs to the target's pass.
    const double head = runner_.head_seconds() - head_before;
    outcome_.target_seconds += head;
    outcome_.sample_seconds -= head;
  }
  return std::move(outcome_);
}

// Accepted nodes lie where they stood in their tree; their KV moves to the slots after the root's.
void HostExecutor::compact_kv(const std::vector<SequenceOutcome>& outcomes) {
  std::vector<std::pair<int64_t, int64_t>> moves;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Sequence& sequence = steps_[i].completion->sequence;
    for (size_t k = 0; k < outcomes[i].accepted.size(); ++k) {
      const int node = outcomes[i].accepted[k];
      const int place = static_cast<int>(k) + 1;
      if (node == place) continue;
      moves.emplace_back(sequence.blocks.slot(sequence.num_computed_tokens + node),
                         sequence.blocks.slot(sequence.num_computed_tokens + place));
    }
  }
  runner_.move_kv(moves);
}

}  // namespace specdec
