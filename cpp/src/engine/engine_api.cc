// specdec::Engine over its Impl, and generate(), which needs no more than the other calls.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/engine_impl.h"
#include "specdec/engine.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void append(Completion& completion, CompletionOutput part) {
  completion.token_ids.insert(completion.token_ids.end(), part.new_token_ids.begin(),
                              part.new_token_ids.end());
  std::move(part.new_logprobs.begin(), part.new_logprobs.end(),
            std::back_inserter(completion.logprobs));
  completion.finish_reason = part.finish_reason;
  completion.tapped_states = std::move(part.tapped_states);
}

void mark_aborted(std::vector<Completion>& completions) {
  for (Completion& completion : completions) {
    if (completion.finish_reason != FinishReason::kNone) continue;
    completion.finish_reason = FinishReason::kAbort;
  }
}

}  // namespace

void StepTokens::record(int num_tokens) {
  const auto bucket = std::ranges::lower_bound(kBounds, num_tokens);
  ++counts[static_cast<size_t>(bucket - kBounds.begin())];
  sum += num_tokens;
}

Engine::Engine(const EngineConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

void Engine::add_request(uint64_t id, const PreparedRequest& request) {
  impl_->add_request(id, request);
}
void Engine::add_request(uint64_t id, std::vector<int32_t> prompt_token_ids, SamplingParams params,
                         RequestOptions options) {
  add_request(id, PreparedRequest(model_info(), std::move(prompt_token_ids), std::move(params),
                                  std::move(options)));
}
bool Engine::abort(uint64_t id) { return impl_->abort(id); }
bool Engine::stop_completion(uint64_t id, int index) { return impl_->stop_completion(id, index); }
std::vector<RequestOutput> Engine::step() { return impl_->step(); }
std::vector<RequestOutput> Engine::check_ranks() { return impl_->check_ranks(); }
bool Engine::has_ranks() const { return impl_->has_ranks(); }
std::exception_ptr Engine::failure() const { return impl_->failure(); }
bool Engine::has_unfinished_requests() const { return impl_->has_unfinished_requests(); }
int Engine::reset_prefix_cache() { return impl_->reset_prefix_cache(); }
EngineStats Engine::stats() const { return impl_->stats(); }
EngineLoad Engine::load() const { return impl_->load(); }
const ModelInfo& Engine::model_info() const { return impl_->model_info(); }

std::vector<std::vector<Completion>> Engine::generate(
    const std::vector<std::vector<int32_t>>& prompts, const SamplingParams& params,
    const OutputCallback& on_output) {
  std::vector<PreparedRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    requests.emplace_back(model_info(), prompt, params);
  }
  return generate(requests, on_output);
}

std::vector<std::vector<Completion>> Engine::generate(const std::vector<PreparedRequest>& requests,
                                                      const OutputCallback& on_output) {
  if (has_unfinished_requests()) {
    throw InvalidArgument("prompts",
                          "generate() runs alone; finish or abort the requests added before");
  }
  for (const PreparedRequest& request : requests) request.check_for(model_info());
  std::vector<std::vector<Completion>> completions(requests.size());
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      completions[i].resize(requests[i].params().n);
      add_request(i, requests[i]);
    }
    while (has_unfinished_requests()) {
      for (RequestOutput& output : step()) {
        const bool goes_on = on_output == nullptr || on_output(output);
        if (output.engine_failure) std::rethrow_exception(output.engine_failure);
        if (!output.error.empty()) throw Error(output.error);
        std::vector<Completion>& answer = completions[output.request_id];
        for (CompletionOutput& part : output.outputs) append(answer[part.index], std::move(part));
        if (!goes_on && abort(output.request_id)) mark_aborted(answer);
      }
    }
  } catch (...) {
    for (size_t i = 0; i < requests.size(); ++i) abort(i);
    throw;
  }
  return completions;
}

}  // namespace specdec
