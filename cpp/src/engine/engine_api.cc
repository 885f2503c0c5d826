// specdec::Engine over its Impl, and generate(), which needs no more than the other calls.
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "core/str_cat.h"
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

void Engine::check_request(const std::vector<int32_t>& prompt_token_ids,
                           const SamplingParams& params, const RequestOptions& options) const {
  impl_->check_request(prompt_token_ids, params, options);
}
void Engine::add_request(const std::string& request_id, std::vector<int32_t> prompt_token_ids,
                         const SamplingParams& params, RequestOptions options) {
  impl_->add_request(request_id, std::move(prompt_token_ids), params, std::move(options));
}
bool Engine::abort(const std::string& request_id) { return impl_->abort(request_id); }
bool Engine::stop_completion(const std::string& request_id, int index) {
  return impl_->stop_completion(request_id, index);
}
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
    const std::vector<std::vector<int32_t>>& prompts, const SamplingParams& params) {
  if (has_unfinished_requests()) {
    throw InvalidArgument("prompts",
                          "generate() runs alone; finish or abort the requests added before");
  }
  for (const std::vector<int32_t>& prompt : prompts) impl_->check_request(prompt, params);
  std::vector<std::vector<Completion>> completions(prompts.size());
  std::unordered_map<std::string, size_t> prompt_of;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string id = str_cat("generate-", i);
    completions[i].resize(params.n);
    prompt_of.emplace(id, i);
    impl_->add_request(id, prompts[i], params);
  }
  try {
    while (has_unfinished_requests()) {
      for (RequestOutput& output : step()) {
        if (output.engine_failure) std::rethrow_exception(output.engine_failure);
        if (!output.error.empty()) throw Error(output.error);
        for (CompletionOutput& part : output.outputs) {
          append(completions[prompt_of.at(output.request_id)][part.index], std::move(part));
        }
      }
    }
  } catch (...) {
    for (const auto& [id, index] : prompt_of) impl_->abort(id);
    throw;
  }
  return completions;
}

}  // namespace specdec
