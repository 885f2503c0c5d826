// Requests of an engine from their arrival to their end.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "core/stopwatch.h"
#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// The seed of a request that brings none: spread by Philox so that neighbours share nothing.
uint64_t derived_seed(uint64_t engine_seed, uint64_t ordinal) {
  const auto words =
      philox4x32_10({static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32), 0, 0},
                    {static_cast<uint32_t>(engine_seed), static_cast<uint32_t>(engine_seed >> 32)});
  return (static_cast<uint64_t>(words[1]) << 32) | words[0];
}

}  // namespace

void Engine::Impl::add_request(uint64_t id, const PreparedRequest& prepared) {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  prepared.check_for(info_);
  if (requests_.contains(id)) {
    throw InvalidArgument("id", str_cat(id, " is in use by an unfinished request"));
  }
  const std::vector<int32_t>& prompt = prepared.prompt_token_ids();
  const SamplingParams& params = prepared.params();
  auto request = std::make_unique<Request>(id, params, prepared.options());
  const uint64_t seed = params.seed.value_or(derived_seed(config_.seed, num_requests_added_));
  for (int i = 0; i < params.n; ++i) {
    auto completion = std::make_unique<CompletionState>(
        *request, i, seed + static_cast<uint64_t>(i), next_ordinal_ + i, prompt, config_.block_size,
        info_.max_model_len);
    completion->sequence.cache_salt = request->options.cache_salt;
    completion->sequence.priority = request->options.priority;
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
  ++num_waiting_;
  num_waiting_tokens_ += static_cast<int64_t>(prompt.size());
  next_ordinal_ += static_cast<uint64_t>(params.n);
  ++num_requests_added_;
}

void Engine::Impl::erase(uint64_t id) {
  const auto it = requests_.find(id);
  if (it->second->metrics.first_scheduled_time == 0) stop_waiting(*it->second);
  for (const auto& completion : it->second->completions) {
    completions_.erase(completion->sequence.ordinal);
  }
  requests_.erase(it);
}

void Engine::Impl::stop_waiting(const Request& request) {
  --num_waiting_;
  num_waiting_tokens_ -= request.completions[0]->sequence.num_prompt_tokens();
}

bool Engine::Impl::abort(uint64_t id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  for (const auto& completion : it->second->completions) {
    if (!completion->sequence.is_finished()) finish(*completion, FinishReason::kAbort);
  }
  erase(id);
  if (requests_.empty()) drain();
  ++stats_.num_aborted_requests;
  return true;
}

bool Engine::Impl::stop_completion(uint64_t id, int index) {
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
    if (requests_.empty()) drain();
    ++stats_.num_finished_requests;
  }
  return true;
}

void Engine::Impl::finish(CompletionState& completion, FinishReason reason) {
  scheduler_->finish(completion.sequence, reason);
  host_->leave_out(completion);
  if (drafting_ != nullptr) drafting_->finish(completion.sequence);
}

EngineLoad Engine::Impl::load() const {
  return {.num_running = static_cast<int>(requests_.size()) - num_waiting_,
          .num_waiting = num_waiting_,
          .num_waiting_tokens = num_waiting_tokens_,
          .num_free_kv_blocks = pool_->num_free(),
          .num_kv_blocks = pool_->num_blocks()};
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
