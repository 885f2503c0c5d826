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
  if (spare_.empty()) spare_.push_back(std::make_unique<Launched>());
  Launched& launched = *under_way_.emplace_back(std::move(spare_.back()));
  spare_.pop_back();
  launched.outcome = {};
  launched.outcome.sequences.resize(step.plan.sequences.size());
  const Stopwatch watch(launched.outcome.target_seconds);
  launched.steps.clear();
  launched.inputs.clear();
  for (size_t i = 0; i < step.plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = step.plan.sequences[i];
    SequenceStep& sequence =
        launched.steps.emplace_back(SequenceStep{.completion = step.completions[i],
                                                 .num_rows = scheduled.num_rows,
                                                 .samples = scheduled.samples,
                                                 .base_len = scheduled.base_len,
                                                 .tree = step.trees[i]});
    try {
      sequence.first_row = add_rows(launched.inputs, sequence, scheduled.states);
    } catch (...) {
      launched.outcome.sequences[i].error = std::current_exception();
      sequence = {};
    }
  }
  runner_.begin_forward(launched.inputs);
}

int HostExecutor::add_rows(BatchInputs& inputs, const SequenceStep& step,
                           const StateAccess& access) {
  const Sequence& sequence = step.completion->sequence;
  const DraftTree* tree = step.tree;
  const StateAccess* const states = access.stores.empty() ? nullptr : &access;
  const auto add_chain = [&](std::span<const int32_t> tokens) {
    return inputs.add_chain(tokens, step.base_len, sequence.blocks, /*keeps_state=*/false, states);
  };
  if (tree == nullptr) return add_chain(sequence.tokens().subspan(step.base_len, step.num_rows));
  if (tree->is_chain()) return add_chain(tree->tokens());
  return inputs.add_tree(tree->tokens(), tree->parents(), step.base_len, sequence.blocks, states);
}

StepOutcome HostExecutor::wait() {
  std::unique_ptr<Launched> launched = std::move(under_way_.front());
  under_way_.pop_front();
  StepOutcome outcome = std::move(launched->outcome);
  {
    const Stopwatch watch(outcome.target_seconds);
    runner_.forward(launched->inputs);
  }
  {
    const Stopwatch watch(outcome.sample_seconds);
    const double lm_head_seconds_before = runner_.lm_head_seconds();
    std::vector<SequenceOutcome> sampled = sampler_.run(launched->steps);
    for (size_t i = 0; i < sampled.size(); ++i) {
      if (!outcome.sequences[i].error) outcome.sequences[i] = std::move(sampled[i]);
    }
    compact_kv(launched->steps, outcome.sequences);
    // The head runs row group by row group inside the sampler, but belongs to the target's pass.
    const double lm_head_seconds = runner_.lm_head_seconds() - lm_head_seconds_before;
    outcome.target_seconds += lm_head_seconds;
    outcome.sample_seconds -= lm_head_seconds;
  }
  spare_.push_back(std::move(launched));
  return outcome;
}

void HostExecutor::leave_out(const CompletionState& completion) {
  for (const auto& launched : under_way_) {
    for (SequenceStep& step : launched->steps) {
      if (step.completion == &completion) step = {};
    }
  }
}

// Accepted nodes lie where they stood in their tree; their KV moves to the slots after the root's.
void HostExecutor::compact_kv(std::span<const SequenceStep> steps,
                              std::span<const SequenceOutcome> outcomes) {
  std::vector<std::pair<int64_t, int64_t>> moves;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    for (size_t k = 0; k < outcomes[i].accepted.size(); ++k) {
      const int node = outcomes[i].accepted[k];
      const int offset = static_cast<int>(k) + 1;
      if (node == offset) continue;
      const BlockTable& blocks = steps[i].completion->sequence.blocks;
      moves.emplace_back(blocks.slot(steps[i].base_len + node),
                         blocks.slot(steps[i].base_len + offset));
    }
  }
  runner_.move_kv(moves);
}

}  // namespace specdec
