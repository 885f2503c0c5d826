#include "engine/step_sampler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/run_or_blame.h"

namespace specdec {
namespace {

bool has_drafts(const SequenceStep& step) {
  return step.tree != nullptr && step.tree->num_drafts() > 0;
}

UniformSource uniforms_of(const SequenceStep& step) {
  return step_uniforms(step.completion->seed, step.completion->sequence.num_tokens() - 1);
}

// The node whose row gave the i-th token of an outcome.
int node_of_token(const SequenceOutcome& outcome, size_t i) {
  return i == 0 ? DraftTree::kRoot : outcome.accepted[i - 1];
}

// A row that could not be made, or whose processor failed, yields no token. At the root, that is
// the sequence's error. After drafts, the error recurs in the next step, where it would also occur
// without drafts.
void drop_failed(SampleBatch& batch, size_t first_row, SequenceOutcome& outcome) {
  for (size_t i = 0; i < outcome.tokens.size(); ++i) {
    const auto& error = batch.result(first_row + node_of_token(outcome, i)).error;
    if (!error) continue;
    if (i == 0) std::rethrow_exception(error);
    outcome.tokens.resize(i);
    outcome.accepted.resize(i - 1);
  }
}

}  // namespace

StepSampler::StepSampler(ModelRunner& runner, LogprobsMode logprobs_mode,
                         const SpeculativeConfig& config, int max_distribution_rows)
    : runner_(runner),
      logprobs_mode_(logprobs_mode),
      verification_(config.verification),
      synthetic_rates_(config.verification == Verification::kSynthetic
                           ? config.conditional_acceptance_rates()
                           : std::vector<double>{}),
      max_distribution_rows_(max_distribution_rows),
      vocab_size_(runner.vocab_size()) {}

bool StepSampler::is_weighed(const SequenceStep& step) const {
  return has_drafts(step) && weighs_drafts(verification_);
}

std::vector<SequenceOutcome> StepSampler::run(std::span<const SequenceStep> steps) {
  make_masks(steps);
  std::vector<SequenceOutcome> outcomes(steps.size());
  const auto work = [&](size_t begin, size_t end) {
    std::ranges::move(run_together(steps.subspan(begin, end - begin)), outcomes.begin() + begin);
  };
  run_or_blame(steps.size(), work,
               [&](size_t i, const std::exception_ptr& error) { outcomes[i].error = error; });
  return outcomes;
}

void StepSampler::make_masks(std::span<const SequenceStep> steps) {
  std::vector<const SequenceStep*> constrained;
  for (const SequenceStep& step : steps) {
    if (step.samples && step.completion->grammar() != nullptr) constrained.push_back(&step);
  }
  for_each_index(&runner_.thread_pool(), constrained.size(), [&](size_t i) {
    constrained[i]->completion->grammar()->make_masks(constrained[i]->tree);
  });
}

std::vector<SequenceOutcome> StepSampler::run_together(std::span<const SequenceStep> steps) {
  batch_.clear();
  std::vector<size_t> first_prompt_row(steps.size());
  std::vector<size_t> first_sample(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    first_prompt_row[i] = batch_.size();
    add_prompt_rows(steps[i]);
    first_sample[i] = batch_.size();
    if (steps[i].samples && !is_weighed(steps[i])) add_node_rows(steps[i]);
  }
  runner_.sample(batch_.row_ids(), batch_.rows(), logprobs_mode_, batch_.fresh_results());

  std::vector<SequenceOutcome> outcomes(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    for (size_t row = first_prompt_row[i]; row < first_sample[i]; ++row) {
      outcomes[i].prompt_logprobs.push_back(std::move(batch_.result(row).logprobs));
    }
    if (steps[i].samples && !is_weighed(steps[i])) {
      read_samples(steps[i], first_sample[i], outcomes[i]);
    }
  }
  run_weighed(steps, outcomes);
  return outcomes;
}

// Rows whose next token is known because it stands in the prompt, and that were not reported before
// (a preempted sequence computes them again).
void StepSampler::add_prompt_rows(const SequenceStep& step) {
  if (step.completion == nullptr || step.completion->index != 0) return;
  const Request& request = step.completion->request;
  if (!request.params.prompt_logprobs.has_value()) return;
  const Sequence& sequence = step.completion->sequence;
  const int begin = std::max(step.base_len, request.num_prompt_logprobs);
  const int end = std::min(step.base_len + step.num_rows, sequence.num_prompt_tokens() - 1);
  for (int position = begin; position < end; ++position) {
    batch_.add_known_token(step.first_row + position - step.base_len,
                           sequence.tokens()[position + 1], *request.params.prompt_logprobs);
  }
}

// The rows that sample: every node of the tree, or the last row without one.
void StepSampler::add_node_rows(const SequenceStep& step) {
  if (!has_drafts(step)) {
    batch_.add(step.first_row + step.num_rows - 1, step.completion->make_row({}));
    return;
  }
  batch_.add(step.first_row, step.completion->make_row({}));
  for (int node = 1; node < step.tree->num_nodes(); ++node) {
    SampleRow row;
    std::exception_ptr error;
    try {
      row = step.completion->make_row(step.tree->path(node));
    } catch (...) {
      error = std::current_exception();  // matters if the drafts up to here are kept
    }
    batch_.add(step.first_row + node, row, error);
  }
}

void StepSampler::read_samples(const SequenceStep& step, size_t first_sample,
                               SequenceOutcome& outcome) {
  if (has_drafts(step)) {
    std::vector<int32_t> sampled;
    for (int node = 0; node < step.tree->num_nodes(); ++node) {
      sampled.push_back(batch_.result(first_sample + node).token_id);
    }
    Accepted accepted =
        verification_ == Verification::kSynthetic
            ? accept_synthetic(*step.tree, synthetic_rates_, sampled, uniforms_of(step))
            : accept_exact(*step.tree, sampled);
    outcome.accepted = std::move(accepted.nodes);
    outcome.tokens = std::move(accepted.tokens);
  } else {
    outcome.tokens = {batch_.result(first_sample).token_id};
  }
  drop_failed(batch_, first_sample, outcome);
  if (!step.completion->request.params.logprobs.has_value()) return;
  for (size_t i = 0; i < outcome.tokens.size(); ++i) {
    SampleResult& result = batch_.result(first_sample + node_of_token(outcome, i));
    outcome.logprobs.push_back(std::move(result.logprobs));
  }
}

void StepSampler::run_weighed(std::span<const SequenceStep> steps,
                              std::vector<SequenceOutcome>& outcomes) {
  std::vector<size_t> group;
  int num_rows = 0;
  const auto flush = [&] {
    if (!group.empty()) verify_group(steps, group, outcomes);
    group.clear();
    num_rows = 0;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].samples || !is_weighed(steps[i])) continue;
    if (num_rows + steps[i].tree->num_nodes() > max_distribution_rows_) flush();
    group.push_back(i);
    num_rows += steps[i].tree->num_nodes();
  }
  flush();
}

void StepSampler::verify_group(std::span<const SequenceStep> steps, std::span<const size_t> group,
                               std::vector<SequenceOutcome>& outcomes) {
  batch_.clear();
  for (size_t i : group) add_node_rows(steps[i]);
  distributions_.resize(batch_.size() * static_cast<size_t>(vocab_size_));
  SampleBatch weighed;
  for (size_t row = 0; row < batch_.size(); ++row) {
    SampleRow sample_row = batch_.rows()[row];
    sample_row.want_logprobs = false;
    sample_row.distribution = &distributions_[row * vocab_size_];
    weighed.add(batch_.row_ids()[row], sample_row, batch_.error(row));
  }
  runner_.sample(weighed.row_ids(), weighed.rows(), logprobs_mode_, weighed.fresh_results());

  size_t first = 0;
  for (size_t i : group) {
    const DraftTree& tree = *steps[i].tree;
    const TargetSource target = [&](int node) {
      return std::span<const float>(&distributions_[(first + node) * vocab_size_], vocab_size_);
    };
    const UniformSource uniform = uniforms_of(steps[i]);
    Accepted accepted = verification_ == Verification::kBlock
                            ? accept_block(tree, target, uniform)
                            : accept_rejection(tree, target, uniform);
    outcomes[i].accepted = std::move(accepted.nodes);
    outcomes[i].tokens = std::move(accepted.tokens);
    drop_failed(weighed, first, outcomes[i]);
    first += tree.num_nodes();
  }
  add_logprobs(steps, group, outcomes);
}

// Only now is it known which token a row emits, so logprobs read the row a second time.
void StepSampler::add_logprobs(std::span<const SequenceStep> steps, std::span<const size_t> group,
                               std::vector<SequenceOutcome>& outcomes) {
  batch_.clear();
  for (size_t i : group) {
    if (!steps[i].completion->request.params.logprobs.has_value()) continue;
    for (size_t t = 0; t < outcomes[i].tokens.size(); ++t) {
      const int node = node_of_token(outcomes[i], t);
      batch_.add(steps[i].first_row + node, steps[i].completion->make_known_row(
                                                steps[i].tree->path(node), outcomes[i].tokens[t]));
    }
  }
  runner_.sample(batch_.row_ids(), batch_.rows(), logprobs_mode_, batch_.fresh_results());
  size_t row = 0;
  for (size_t i : group) {
    if (!steps[i].completion->request.params.logprobs.has_value()) continue;
    for (size_t t = 0; t < outcomes[i].tokens.size(); ++t) {
      SampleResult& result = batch_.result(row++);
      if (result.error) std::rethrow_exception(result.error);
      outcomes[i].logprobs.push_back(std::move(result.logprobs));
    }
  }
}

}  // namespace specdec
