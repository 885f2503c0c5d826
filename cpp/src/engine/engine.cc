#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/check.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/philox.h"
#include "core/stopwatch.h"
#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kMaxLogitRows = 64;  // bounds the logits buffer; more rows are sampled in turns
constexpr int kMaxDistributionRows = 64;  // whose distributions are held at once for rejection

// Rows sampled in one turn: all that decode and their drafts, within reason.
int max_logit_rows(const EngineConfig& config) {
  const int64_t rows_per_sequence =
      config.speculative.enabled() ? 1 + config.speculative.max_nodes() : 1;
  return static_cast<int>(
      std::min<int64_t>(config.max_num_seqs * rows_per_sequence, kMaxLogitRows));
}

// Keeps the backend's threads hot for the length of a step.
class StepGuard {
 public:
  explicit StepGuard(Backend& backend) : backend_(backend) { backend_.begin_step(); }
  ~StepGuard() { backend_.end_step(); }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

 private:
  Backend& backend_;
};

// The seed of a request that brings none: spread by Philox so that neighbours share nothing.
uint64_t derived_seed(uint64_t engine_seed, uint64_t ordinal) {
  const auto words =
      philox4x32_10({static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32), 0, 0},
                    {static_cast<uint32_t>(engine_seed), static_cast<uint32_t>(engine_seed >> 32)});
  return (static_cast<uint64_t>(words[1]) << 32) | words[0];
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& given, const BackendMaker& make_backend) : config_(given) {
  validate(config_);
  const DeviceChoice device = resolve_device(config_.device);
  if (config_.device == "auto") log_info("device='auto' is ", device.name);
  fill_defaults(config_, device.kind);
  const EngineConfig& config = config_;
  ModelConfig model = load_model_config(config.model, config.hf_overrides);
  model.random_weights = config.load_format == "dummy";
  backend_ = make_backend({.device = device.name,
                           .cpu_isa = config.cpu_isa,
                           .num_threads = config.num_threads,
                           .act_dtype = resolve_dtype(config, model, device.kind),
                           .enforce_eager = config.enforce_eager,
                           .deterministic = config.deterministic});
  release_free_heap();             // what reading a tokenizer left behind, before weights come
  const StepGuard hot(*backend_);  // weights are packed by the threads that will read them
  const KvFormat kv_format = resolve_kv_format(config, backend_->act_dtype());
  const int longest = resolve_max_model_len(config, model);
  const int max_model_len =
      limit_to_cache(longest, config, device.kind, model, kv_format, backend_->memory());
  const RunnerLimits limits{.max_model_len = max_model_len,
                            .max_rows = config.max_num_batched_tokens,
                            .max_logit_rows = max_logit_rows(config)};
  runner_ = std::make_unique<ModelRunner>(model, config.model, *backend_, limits,
                                          parse_quantization(config.quantization));
  draft_models_ = std::make_unique<DraftModels>(config, *backend_, *runner_, max_model_len);
  const int64_t block_bytes =
      runner_->cache_block_bytes(kv_format) + draft_models_->cache_block_bytes(kv_format);
  const int num_kv_heads = std::max(model.num_kv_heads, draft_models_->num_kv_heads());
  runner_->rehearse(kv_format);
  draft_models_->rehearse(kv_format);
  const LogprobsMode logprobs_mode = parse_logprobs_mode(config.logprobs_mode);
  const DeviceLoopConfig loop_config = {
      .max_num_seqs = config.max_num_seqs,
      .max_drafts = config.speculative.max_nodes(),
      .max_rows = config.max_num_batched_tokens,
      .max_model_len = max_model_len,
      .block_size = config.block_size,
      .logprobs_mode = logprobs_mode,
      .verification = config.speculative.verification,
      .synthetic_rates = config.speculative.verification == Verification::kSynthetic
                             ? config.speculative.synthetic_acceptance_rates
                             : std::vector<double>{}};
  auto device_step =
      DeviceLoop::make_step(*backend_, *runner_, config.speculative, *draft_models_, loop_config);
  MemoryInfo memory = backend_->memory();
  if (device_step != nullptr) memory.free_bytes -= device_step->bytes_on_demand();
  const CacheSize cache =
      resolve_cache_size(config, device.kind, max_model_len, block_bytes, num_kv_heads, memory);
  if (cache.max_model_len < longest) {
    log_info("max_model_len lowered from ", longest, " to ", cache.max_model_len,
             ", what the KV cache holds");
  }
  runner_->allocate_cache(cache.num_blocks, kv_format);
  pool_ = std::make_unique<BlockPool>(cache.num_blocks);
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerConfig{.max_num_seqs = config.max_num_seqs,
                      .max_num_batched_tokens = config.max_num_batched_tokens,
                      .block_size = config.block_size,
                      .enable_prefix_caching = config.enable_prefix_caching},
      *pool_);
  draft_models_->allocate_caches(cache.num_blocks, kv_format);
  if (config.speculative.enabled()) {
    drafting_ =
        std::make_unique<Drafting>(config.speculative, model.vocab_size, *draft_models_, *pool_);
  }
  sampler_ = std::make_unique<StepSampler>(*runner_, logprobs_mode, config.speculative,
                                           kMaxDistributionRows);
  if (device_step != nullptr) {
    loop_ = std::make_unique<DeviceLoop>(std::move(device_step), *scheduler_, drafting_.get(),
                                         loop_config);
  }
  fill_model_info(model, cache);
}

void Engine::Impl::fill_model_info(const ModelConfig& model, const CacheSize& cache) {
  info_.architecture = model.architecture;
  info_.dtype = std::string(name_of(backend_->act_dtype()));
  info_.weight_format = runner_->decoder().weight_format();
  info_.device = backend_->device_info().name;
  info_.isa = backend_->isa();
  info_.num_layers = model.num_layers;
  info_.hidden_size = model.hidden_size;
  info_.num_heads = model.num_heads;
  info_.num_kv_heads = model.num_kv_heads;
  info_.head_dim = model.head_dim;
  info_.vocab_size = model.vocab_size;
  info_.max_model_len = cache.max_model_len;
  info_.max_num_seqs = config_.max_num_seqs;
  info_.max_num_batched_tokens = config_.max_num_batched_tokens;
  info_.num_threads = backend_->num_threads();
  info_.num_kv_blocks = cache.num_blocks;
  info_.block_size = config_.block_size;
  info_.num_parameters = runner_->decoder().num_parameters();
  info_.weight_bytes = runner_->decoder().weight_bytes() + draft_models_->weight_bytes();
  info_.kv_cache_dtype = std::string(name_of(runner_->cache().layers()[0].dtype));
  info_.kv_cache_bytes = runner_->cache().size_bytes() + draft_models_->kv_cache_bytes();
}

void Engine::Impl::check_request(const std::vector<int32_t>& prompt,
                                 const SamplingParams& params) const {
  if (prompt.empty()) throw InvalidArgument("prompt", "is empty; give at least one token");
  if (static_cast<int64_t>(prompt.size()) >= info_.max_model_len) {
    throw InvalidArgument(
        "prompt", str_cat("has ", prompt.size(), " tokens, but max_model_len ", info_.max_model_len,
                          " must hold it and one more; shorten the prompt or "
                          "raise max_model_len"));
  }
  for (int32_t token : prompt) {
    if (token < 0 || token >= info_.vocab_size) {
      throw InvalidArgument("prompt", str_cat("token id ", token, " is outside the vocabulary [0, ",
                                              info_.vocab_size, ")"));
    }
  }
  params.validate(info_.vocab_size);
  const int longest_draft = config_.speculative.num_speculative_tokens;
  if (params.num_speculative_tokens.value_or(0) > longest_draft) {
    throw InvalidArgument("num_speculative_tokens",
                          str_cat(*params.num_speculative_tokens, " is more than the engine's (",
                                  longest_draft, "); raise that of speculative_config"));
  }
}

void Engine::Impl::add_request(const std::string& id, std::vector<int32_t> prompt,
                               const SamplingParams& params) {
  if (has_failed()) throw EngineFailed(failure_);
  check_request(prompt, params);
  if (requests_.contains(id)) {
    throw InvalidArgument("request_id", str_cat("'", id, "' is in use by an unfinished request"));
  }
  auto request = std::make_unique<Request>(id, params);
  const uint64_t seed = params.seed.value_or(derived_seed(config_.seed, num_requests_added_));
  for (int i = 0; i < params.n; ++i) {
    auto completion = std::make_unique<CompletionState>(
        *request, i, seed + static_cast<uint64_t>(i), next_ordinal_ + i, prompt, config_.block_size,
        info_.max_model_len);
    if (i == 0) {
      // A cached position has no logits to report.
      completion->sequence.use_prefix_cache = !params.prompt_logprobs.has_value();
    } else {
      completion->sequence.prefill_leader = &request->completions[0]->sequence;
    }
    request->completions.push_back(std::move(completion));
  }
  request->metrics.arrival_time = now_seconds();
  for (const auto& completion : request->completions) {
    completions_.emplace(completion->sequence.ordinal, completion.get());
    scheduler_->add(completion->sequence);
  }
  requests_.emplace(id, std::move(request));
  next_ordinal_ += static_cast<uint64_t>(params.n);
  ++num_requests_added_;
}

void Engine::Impl::erase(const std::string& id) {
  const auto it = requests_.find(id);
  for (const auto& completion : it->second->completions) {
    completions_.erase(completion->sequence.ordinal);
  }
  requests_.erase(it);
}

bool Engine::Impl::abort(const std::string& id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  for (const auto& completion : it->second->completions) {
    if (!completion->sequence.is_finished()) finish(*completion, FinishReason::kAbort);
  }
  erase(id);
  ++stats_.num_aborted_requests;
  return true;
}

bool Engine::Impl::stop_completion(const std::string& id, int index) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || index < 0 ||
      index >= static_cast<int>(it->second->completions.size())) {
    return false;
  }
  Request& request = *it->second;
  CompletionState& completion = *request.completions[index];
  if (completion.sequence.is_finished()) return false;
  finish(completion, FinishReason::kStop);
  if (request.is_finished()) {
    erase(id);
    ++stats_.num_finished_requests;
  }
  return true;
}

std::optional<std::vector<RequestOutput>> Engine::Impl::device_step() {
  if (loop_ == nullptr) return std::nullopt;
  DeviceLoop::Step step;
  if (!loop_->run(completion_source(), step)) return std::nullopt;
  ++stats_.num_device_steps;
  stats_.draft_seconds += step.draft_seconds;
  stats_.forward_seconds += step.target_seconds;
  const Stopwatch watch(stats_.commit_seconds);
  steps_.clear();
  ExecutionPlan plan;
  std::vector<SequenceOutcome> emissions;
  for (DeviceLoop::Progress& progress : step.sequences) {
    plan.sequences.push_back(progress.scheduled);
    steps_.push_back({.completion = progress.completion,
                      .samples = true,
                      .tree = &progress.tree,
                      .num_passes = progress.num_passes});
    SequenceOutcome& emission = emissions.emplace_back();
    emission.tokens = std::move(progress.outcome.tokens);
    emission.logprobs = std::move(progress.outcome.logprobs);
    emission.accepted = std::move(progress.outcome.accepted);
  }
  Outputs outputs;
  commit(plan, emissions, outputs);
  if (drafting_ != nullptr) drafting_->end_step(step.target_seconds);
  return end_step(outputs);
}

std::vector<RequestOutput> Engine::Impl::step() {
  if (has_failed()) return {};
  try {
    return run_step();
  } catch (...) {
    return fail_engine(std::current_exception());
  }
}

std::vector<RequestOutput> Engine::Impl::run_step() {
  const StepGuard guard(*backend_);
  failures_.clear();
  if (auto outputs = device_step()) return *std::move(outputs);
  ExecutionPlan plan = plan_and_draft();
  if (plan.empty()) {
    SPECDEC_CHECK(!has_unfinished_requests());  // the scheduler always finds something to run
    return {};
  }
  const double start = now_seconds();
  std::vector<SequenceOutcome> emissions;
  if (auto verified = verify_on_device(plan)) {
    emissions = *std::move(verified);
  } else {
    emissions = run(plan);
  }
  const Stopwatch watch(stats_.commit_seconds);
  Outputs outputs;
  commit(plan, emissions, outputs);
  fail_requests(outputs);
  if (drafting_ != nullptr) drafting_->end_step(now_seconds() - start);
  return end_step(outputs);
}

std::optional<std::vector<SequenceOutcome>> Engine::Impl::verify_on_device(
    const ExecutionPlan& plan) {
  if (loop_ == nullptr) return std::nullopt;
  const auto tree_of = [this](size_t index) {
    return drafting_ != nullptr ? drafting_->tree(index) : nullptr;
  };
  auto outcome = loop_->verify(plan, tree_of, completion_source());
  if (!outcome.has_value()) return std::nullopt;
  ++stats_.num_device_steps;
  stats_.forward_seconds += outcome->target_seconds;
  list_steps(plan);
  std::vector<SequenceOutcome> emissions;
  for (SequenceOutcome& slot : outcome->sequences) {
    SequenceOutcome& emission = emissions.emplace_back();
    emission.tokens = std::move(slot.tokens);
    emission.logprobs = std::move(slot.logprobs);
    emission.accepted = std::move(slot.accepted);
  }
  return emissions;
}

std::vector<SequenceOutcome> Engine::Impl::run(ExecutionPlan& plan) {
  if (loop_ != nullptr) loop_->forget();
  {
    const Stopwatch watch(stats_.forward_seconds);
    forward(plan);
  }
  std::vector<SequenceOutcome> emissions;
  {
    const double head_before = runner_->head_seconds();
    {
      const Stopwatch watch(stats_.sample_seconds);
      emissions = sampler_->run(steps_);
    }
    // The head runs row group by row group inside the sampler, but belongs to the forward pass.
    const double head = runner_->head_seconds() - head_before;
    stats_.forward_seconds += head;
    stats_.sample_seconds -= head;
  }
  for (size_t i = emissions.size(); i-- > 0;) {
    if (!emissions[i].error) continue;
    drop(plan, i, emissions[i].error);
    emissions.erase(emissions.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const Stopwatch watch(stats_.commit_seconds);
  compact_kv(emissions);
  return emissions;
}

std::vector<RequestOutput> Engine::Impl::end_step(Outputs& outputs) {
  retire_finished(outputs);
  ++stats_.num_steps;
  return in_order(outputs);
}

std::vector<RequestOutput> Engine::Impl::in_order(Outputs& outputs) {
  std::vector<RequestOutput> ordered;
  ordered.reserve(outputs.size());
  for (auto& [ordinal, output] : outputs) ordered.push_back(std::move(output));
  return ordered;
}

ExecutionPlan Engine::Impl::plan_and_draft() {
  ExecutionPlan plan;
  {
    const Stopwatch watch(stats_.schedule_seconds);
    plan = drafting_ == nullptr
               ? scheduler_->plan()
               : scheduler_->plan([this](const Sequence& sequence, int num_decoding) {
                   return drafting_->budget(sequence, num_decoding);
                 });
  }
  for (const ScheduledSequence& scheduled : plan.sequences) {
    completion_of(*scheduled.sequence).begin_step();
  }
  if (drafting_ != nullptr) {
    const Stopwatch watch(stats_.draft_seconds);
    failures_ = drafting_->draft(plan, [this](const Sequence& sequence) -> CompletionState& {
      return completion_of(sequence);
    });
  }
  return plan;
}

void Engine::Impl::list_steps(const ExecutionPlan& plan) {
  steps_.clear();
  const double now = now_seconds();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = plan.sequences[i];
    CompletionState& completion = completion_of(*scheduled.sequence);
    RequestMetrics& metrics = completion.request.metrics;
    if (metrics.first_scheduled_time == 0) metrics.first_scheduled_time = now;
    steps_.push_back({.completion = &completion,
                      .num_rows = scheduled.num_rows,
                      .samples = scheduled.samples,
                      .tree = drafting_ != nullptr ? drafting_->tree(i) : nullptr});
  }
}

void Engine::Impl::forward(ExecutionPlan& plan) {
  list_steps(plan);
  inputs_.clear();
  for (size_t i = 0; i < steps_.size();) {
    try {
      steps_[i].first_row = add_rows(steps_[i]);
      ++i;
    } catch (...) {
      drop(plan, i, std::current_exception());
    }
  }
  runner_->forward(inputs_);
}

int Engine::Impl::add_rows(const SequenceStep& step) {
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

// Accepted nodes lie where they stood in their tree; their KV moves to the slots after the root's.
void Engine::Impl::compact_kv(const std::vector<SequenceOutcome>& emissions) {
  std::vector<std::pair<int64_t, int64_t>> moves;
  for (size_t i = 0; i < emissions.size(); ++i) {
    const Sequence& sequence = steps_[i].completion->sequence;
    for (size_t k = 0; k < emissions[i].accepted.size(); ++k) {
      const int node = emissions[i].accepted[k];
      const int place = static_cast<int>(k) + 1;
      if (node == place) continue;
      moves.emplace_back(sequence.blocks.slot(sequence.num_computed_tokens + node),
                         sequence.blocks.slot(sequence.num_computed_tokens + place));
    }
  }
  runner_->move_kv(moves);
}

void Engine::Impl::commit(const ExecutionPlan& plan, std::vector<SequenceOutcome>& emissions,
                          Outputs& outputs) {
  stats_.num_prompt_tokens += plan.num_prompt_rows;
  stats_.num_preemptions += static_cast<int64_t>(plan.preempted.size());
  for (const Sequence* sequence : plan.preempted) {
    ++completion_of(*sequence).request.metrics.num_preemptions;
  }
  StepResult result;
  for (size_t i = 0; i < emissions.size(); ++i) {
    CompletionState& completion = *steps_[i].completion;
    if (drafting_ != nullptr) {
      drafting_->record({.completion = &completion,
                         .tree = steps_[i].tree,
                         .num_passes = steps_[i].num_passes,
                         .accepted = emissions[i].accepted,
                         .tokens = emissions[i].tokens});
    }
    result.tokens.push_back(emissions[i].tokens);
    Request& request = completion.request;
    for (PositionLogprobs& position : emissions[i].prompt_logprobs) {
      output_of(outputs, request).new_prompt_logprobs.push_back(std::move(position));
      ++request.num_prompt_logprobs;
    }
  }
  const std::vector<SequenceUpdate> updates = scheduler_->advance(plan, result);
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].num_new_tokens > 0) {
      report(*steps_[i].completion, updates[i].num_new_tokens, std::move(emissions[i].logprobs),
             outputs);
    }
  }
}

// What a completion got in this step.
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
  if (sequence.num_output_tokens() == num_new_tokens) {
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
  if (const auto* finished = std::get_if<Finished>(&sequence.state)) {
    output.finish_reason = finished->reason;
    output.stop_token_id = finished->stop_token_id;
    if (drafting_ != nullptr) drafting_->finish(sequence);
  }
}

void Engine::Impl::finish(CompletionState& completion, FinishReason reason) {
  scheduler_->finish(completion.sequence, reason);
  if (drafting_ != nullptr) drafting_->finish(completion.sequence);
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

DeviceLoop::CompletionSource Engine::Impl::completion_source() const {
  return [this](uint64_t ordinal) {
    const auto it = completions_.find(ordinal);
    return it == completions_.end() ? nullptr : it->second;
  };
}

CompletionState& Engine::Impl::completion_of(const Sequence& sequence) {
  return *completions_.at(sequence.ordinal);
}

EngineStats Engine::Impl::stats() const {
  EngineStats stats = stats_;
  stats.num_running = scheduler_->num_running();
  stats.num_waiting = scheduler_->num_waiting();
  stats.num_kv_blocks = pool_->num_blocks();
  stats.num_free_kv_blocks = pool_->num_free();
  stats.num_cached_kv_blocks = scheduler_->prefix_cache().num_cached_blocks();
  if (drafting_ != nullptr) drafting_->fill_stats(stats);
  return stats;
}

}  // namespace specdec
