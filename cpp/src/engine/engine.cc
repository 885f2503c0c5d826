// A step: plan, draft, execute, commit.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/stopwatch.h"
#include "engine/engine_impl.h"
#include "engine/step_guard.h"

namespace specdec {

std::vector<RequestOutput> Engine::Impl::step() {
  if (failure_ != nullptr) return {};
  try {
    std::vector<RequestOutput> outputs = run_step();
    if (requests_.empty()) drain();
    return outputs;
  } catch (...) {
    return fail_engine(std::current_exception());
  }
}

std::vector<RequestOutput> Engine::Impl::check_ranks() {
  if (failure_ != nullptr || ranks_ == nullptr) return {};
  try {
    ranks_->group().check_ranks();
    return {};
  } catch (...) {
    return fail_engine(std::current_exception());
  }
}

// Steps are launched while they can be planned ahead of outcomes, otherwise one for each stage of
// the model, and committed in order.
std::vector<RequestOutput> Engine::Impl::run_step() {
  const StepGuard guard(models_.backend());
  while (std::optional<Step> step = plan_ahead()) launch(*std::move(step));
  while (static_cast<int>(under_way_.size()) < num_groups()) {
    Step step = plan_and_draft();
    if (step.plan.empty()) break;
    launch(std::move(step));
  }
  if (under_way_.empty()) {
    SPECDEC_CHECK(!has_unfinished_requests());  // the scheduler always finds something to run
    return {};
  }
  return commit_oldest();
}

std::vector<RequestOutput> Engine::Impl::commit_oldest() {
  Step step = std::move(under_way_.front());
  under_way_.pop_front();
  // Launches of other steps, and waits for them, are not part of what this one takes.
  const double begin = std::max(latest_launch_time_, last_wait_end_);
  StepOutcome outcome = step.executor->wait();
  last_wait_end_ = now_seconds();
  if (ranks_ != nullptr && under_way_.empty()) ranks_->calls().end_step();
  return commit(step, outcome, begin);
}

void Engine::Impl::drain() {
  if (failure_ != nullptr || host_->num_under_way() == 0) return;
  try {
    const StepGuard guard(models_.backend());
    while (host_->num_under_way() > 0) commit_oldest();
  } catch (...) {
    fail_engine(std::current_exception());
  }
}

// ---- plan and draft

std::optional<Step> Engine::Impl::plan_ahead() {
  if (device_ == nullptr || device_->num_under_way() == DeviceExecutor::kMaxUnderWay) return {};
  if (scheduler_->has_other_work()) return {};
  std::vector<CompletionState*> running;
  for (const Sequence* sequence : scheduler_->running()) {
    running.push_back(&completion_of(*sequence));
  }
  const std::optional<PassesAhead> ahead = device_->passes_ahead(running);
  if (!ahead.has_value()) return {};
  auto plan = scheduler_->plan_ahead(ahead->num_passes, device_->tree_shape());
  if (!plan.has_value()) return {};
  Step step = step_of(*std::move(plan));
  step.drafting = ahead->drafting;
  step.num_passes = ahead->num_passes;
  step.executor = device_.get();
  return step;
}

Step Engine::Impl::plan_and_draft() {
  ExecutionPlan plan;
  {
    const Stopwatch watch(stats_.schedule_seconds);
    plan = drafting_ == nullptr ? scheduler_->plan() : scheduler_->plan(drafting_->budget());
  }
  Step step = step_of(std::move(plan));
  if (step.plan.empty()) return step;
  for (CompletionState* completion : step.completions) completion->begin_step();
  if (drafting_ != nullptr) {
    const Stopwatch watch(stats_.draft_seconds);
    step.drafting = drafting_->begin_step(step.plan);
    step.failures = drafting_->draft(
        step.plan, step.drafting,
        [this](const Sequence& sequence) -> CompletionState& { return completion_of(sequence); });
    for (size_t i = 0; i < step.trees.size(); ++i) step.trees[i] = drafting_->tree(i);
  }
  if (device_ != nullptr && device_->can_run(step, scheduler_->num_running())) {
    step.executor = device_.get();
  } else {
    if (device_ != nullptr) device_->give_up_seats();
    step.executor = host_.get();
  }
  return step;
}

Step Engine::Impl::step_of(ExecutionPlan plan) {
  Step step;
  step.plan = std::move(plan);
  for (const ScheduledSequence& scheduled : step.plan.sequences) {
    step.ordinals.push_back(scheduled.sequence->ordinal);
    step.completions.push_back(&completion_of(*scheduled.sequence));
  }
  step.trees.resize(step.plan.sequences.size(), nullptr);
  return step;
}

// ---- execute

void Engine::Impl::launch(Step step) {
  step.launch_time = now_seconds();
  latest_launch_time_ = step.launch_time;
  for (CompletionState* completion : step.completions) {
    RequestMetrics& metrics = completion->request.metrics;
    if (metrics.first_scheduled_time != 0) continue;
    metrics.first_scheduled_time = step.launch_time;
    stop_waiting(completion->request);
  }
  step.executor->launch(step);
  if (step.executor == device_.get()) ++stats_.num_device_steps;
  if (!under_way_.empty()) ++stats_.num_overlapped_steps;
  under_way_.push_back(std::move(step));
}

// ---- commit

std::vector<RequestOutput> Engine::Impl::commit(Step& step, StepOutcome& outcome,
                                                double wait_begin) {
  const Stopwatch watch(stats_.commit_seconds);
  stats_.draft_seconds += outcome.draft_seconds;
  stats_.forward_seconds += outcome.target_seconds;
  stats_.sample_seconds += outcome.sample_seconds;
  stats_.num_prompt_tokens += step.plan.num_prompt_rows;
  stats_.num_preemptions += static_cast<int64_t>(step.plan.preempted.size());
  for (const Sequence* sequence : step.plan.preempted) {
    ++completion_of(*sequence).request.metrics.num_preemptions;
  }
  const int num_rows = step.plan.num_rows;
  leave_out_ended(step, outcome);
  Outputs outputs;
  if (drafting_ != nullptr) record_drafts(step, outcome);
  StepResult result;
  for (size_t i = 0; i < outcome.sequences.size(); ++i) {
    SequenceOutcome& sequence = outcome.sequences[i];
    result.tokens.push_back(std::move(sequence.tokens));
    result.accepted.push_back(std::move(sequence.accepted));
    Request& request = step.completions[i]->request;
    for (PositionLogprobs& position : sequence.prompt_logprobs) {
      output_of(outputs, request).new_prompt_logprobs.push_back(std::move(position));
      ++request.num_prompt_logprobs;
    }
  }
  FinishHook on_finish;
  if (has_taps()) {
    on_finish = [this](const Sequence& sequence) {
      completion_of(sequence).tapped_states = std::make_shared<TappedStates>(
          models_.target().read_tapped(sequence.blocks, sequence.num_computed_tokens));
    };
  }
  scheduler_->settle(step.plan);
  const std::vector<SequenceUpdate> updates = scheduler_->advance(step.plan, result, on_finish);
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].num_new_tokens > 0) {
      report(*step.completions[i], updates[i].num_new_tokens,
             std::move(outcome.sequences[i].logprobs), outputs);
    }
  }
  fail_requests(step.failures, outputs);
  if (drafting_ != nullptr) {
    drafting_->end_step(step.drafting, step.num_passes.has_value() ? outcome.target_seconds
                                                                   : now_seconds() - wait_begin);
  }
  // Memory comes first: a request that has been retired gets no other output.
  std::vector<RequestOutput> ordered;
  ordered.reserve(outputs.size());
  retire_finished(outputs);
  ++stats_.num_steps;
  stats_.step_tokens.record(num_rows);
  move_in_order(outputs, ordered);
  return ordered;
}

// Takes out what ended while the step was under way, and what failed in it.
void Engine::Impl::leave_out_ended(Step& step, StepOutcome& outcome) {
  size_t num_left = 0;
  for (size_t i = 0; i < outcome.sequences.size(); ++i) {
    const auto completion = completions_.find(step.ordinals[i]);
    if (completion == completions_.end() || completion->second->sequence.is_finished()) continue;
    if (outcome.sequences[i].error) {
      step.failures.push_back({step.ordinals[i], message_of(outcome.sequences[i].error)});
      continue;
    }
    step.plan.sequences[num_left] = step.plan.sequences[i];
    step.completions[num_left] = step.completions[i];
    step.trees[num_left] = step.trees[i];
    if (num_left != i) outcome.sequences[num_left] = std::move(outcome.sequences[i]);
    ++num_left;
  }
  step.plan.sequences.resize(num_left);
  step.completions.resize(num_left);
  step.trees.resize(num_left);
  outcome.sequences.resize(num_left);
}

void Engine::Impl::record_drafts(Step& step, const StepOutcome& outcome) {
  if (step.num_passes.value_or(0) > 0) {
    const auto num_rows = static_cast<int>(step.ordinals.size()) * drafting_->tree_shape().width;
    drafting_->record_passes(step.drafting, *step.num_passes, num_rows, outcome.draft_seconds);
  }
  for (size_t i = 0; i < outcome.sequences.size(); ++i) {
    CompletionState& completion = *step.completions[i];
    const SequenceOutcome& sequence = outcome.sequences[i];
    const DraftTree* tree = step.trees[i];
    if (!sequence.drafts.empty()) {
      device_tree_.reset(completion.sequence.tokens().back());
      for (size_t draft = 0; draft < sequence.drafts.size(); ++draft) {
        device_tree_.add(sequence.parents[draft], sequence.drafts[draft], 1.0f, /*drafter=*/0);
      }
      tree = &device_tree_;
    }
    drafting_->record(step.drafting, {.completion = &completion,
                                      .tree = tree,
                                      .num_passes = step.num_passes,
                                      .accepted = sequence.accepted,
                                      .tokens = sequence.tokens});
  }
}

// Reports the tokens that a completion got in this step.
void Engine::Impl::report(CompletionState& completion, int num_new_tokens,
                          std::vector<PositionLogprobs> logprobs, Outputs& outputs) {
  const Sequence& sequence = completion.sequence;
  const std::span<const int32_t> new_tokens = sequence.output().last(num_new_tokens);
  for (int32_t token : new_tokens) completion.committed(token);
  stats_.num_generation_tokens += num_new_tokens;

  RequestMetrics& metrics = completion.request.metrics;
  if (metrics.first_token_time == 0) {
    metrics.first_token_time = now_seconds();
    metrics.num_cached_tokens = sequence.num_cached_prompt_tokens;
  }
  if (sequence.num_output_tokens() == sequence.num_resumed_tokens + num_new_tokens) {
    stats_.num_cached_tokens += sequence.num_cached_prompt_tokens;
  }
  CompletionOutput& output = output_of(outputs, completion.request).outputs.emplace_back();
  output.index = completion.index;
  output.new_token_ids.assign(new_tokens.begin(), new_tokens.end());
  if (completion.request.params.logprobs.has_value()) {
    logprobs.resize(num_new_tokens);  // a stop token may have cut the rest
    output.new_logprobs = std::move(logprobs);
  }
  if (drafting_ != nullptr) output.acceptance = completion.acceptance;
  output.draft_step = std::exchange(completion.draft_step, std::nullopt);
  if (const auto* finished = std::get_if<Finished>(&sequence.state)) {
    output.finish_reason = finished->reason;
    output.stop_token_id = finished->stop_token_id;
    output.tapped_states = std::move(completion.tapped_states);
    if (drafting_ != nullptr) drafting_->finish(sequence);
  }
}

void Engine::Impl::retire_finished(Outputs& outputs) {
  const double now = now_seconds();
  for (auto& [ordinal, output] : outputs) {
    Request& request = *requests_.at(output.request_id);
    std::sort(output.outputs.begin(), output.outputs.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    output.finished = request.is_finished();
    if (output.finished) request.metrics.finished_time = now;
    output.metrics = request.metrics;
    if (output.finished) {
      erase(output.request_id);
      ++stats_.num_finished_requests;
    }
  }
}

RequestOutput& Engine::Impl::output_of(Outputs& outputs, const Request& request) {
  const auto [it, is_new] = outputs.try_emplace(request.completions[0]->sequence.ordinal);
  if (is_new) it->second.request_id = request.id;
  return it->second;
}

void Engine::Impl::move_in_order(Outputs& outputs, std::vector<RequestOutput>& ordered) {
  for (auto& [ordinal, output] : outputs) ordered.push_back(std::move(output));
}

CompletionState& Engine::Impl::completion_of(const Sequence& sequence) {
  return *completions_.at(sequence.ordinal);
}

}  // namespace specdec
