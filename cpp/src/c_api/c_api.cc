// The C API over specdec::Engine. No exception leaves a function of this file.
#include "specdec/c_api.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/json_facts.h"
#include "c_api/json_options.h"
#include "specdec/checkpoint.h"
#include "specdec/device.h"
#include "specdec/engine.h"
#include "specdec/error.h"
#include "specdec/log.h"

struct specdec_engine {
  specdec::Engine engine;
  std::vector<int32_t> eos_token_ids;  // the checkpoint's
};

namespace specdec {
namespace {

// A copy for specdec_free(); null where there is no memory for one.
char* copy_of(const std::string& text) noexcept {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

specdec_status status_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return SPECDEC_INVALID_ARGUMENT;
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return SPECDEC_CHECKPOINT_ERROR;
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr) return SPECDEC_OUT_OF_MEMORY;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return SPECDEC_OUT_OF_MEMORY;
  if (dynamic_cast<const Unavailable*>(&error) != nullptr) return SPECDEC_UNAVAILABLE;
  if (dynamic_cast<const RankFailure*>(&error) != nullptr) return SPECDEC_RANK_FAILURE;
  if (dynamic_cast<const EngineFailed*>(&error) != nullptr) return SPECDEC_ENGINE_FAILED;
  return SPECDEC_INTERNAL_ERROR;
}

// Runs `body` and makes a status and a message of what it throws.
template <class Body>
specdec_status guarded(char** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    body();
    return SPECDEC_OK;
  } catch (const std::exception& caught) {
    if (error != nullptr) *error = copy_of(caught.what());
    return status_of(caught);
  } catch (...) {
    if (error != nullptr) *error = copy_of("an exception of an unknown type");
    return SPECDEC_INTERNAL_ERROR;
  }
}

// Runs a body whose errors have nowhere to go.
template <class Result, class Body>
Result result_of(Result if_thrown, const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return if_thrown;
  }
}

template <class Pointee>
Pointee& required(const char* name, Pointee* pointer) {
  if (pointer == nullptr) throw InvalidArgument(name, "must not be NULL");
  return *pointer;
}

std::string_view text_of(const char* json) { return json == nullptr ? "" : json; }

void set_string(char** out, const std::string& text) {
  *out = copy_of(text);
  if (*out == nullptr) throw std::bad_alloc();
}

// Logprobs as the C struct shows them.
class LogprobsView {
 public:
  explicit LogprobsView(const std::vector<PositionLogprobs>& positions) {
    for (const PositionLogprobs& position : positions) {
      std::vector<specdec_logprob>& entries = copies_.emplace_back();
      for (const Logprob& entry : position) {
        entries.push_back({entry.token_id, entry.logprob, entry.rank});
      }
      counts_.push_back(entries.size());
      entries_.push_back(entries.data());
    }
  }

  specdec_logprobs get() const {
    return {.num_positions = counts_.size(), .counts = counts_.data(), .entries = entries_.data()};
  }

 private:
  std::vector<std::vector<specdec_logprob>> copies_;
  std::vector<size_t> counts_;
  std::vector<const specdec_logprob*> entries_;
};

// FinishReason has the values of specdec_finish_reason.
static_assert(static_cast<int>(FinishReason::kStop) == SPECDEC_FINISH_STOP &&
              static_cast<int>(FinishReason::kLength) == SPECDEC_FINISH_LENGTH &&
              static_cast<int>(FinishReason::kAbort) == SPECDEC_FINISH_ABORT &&
              static_cast<int>(FinishReason::kError) == SPECDEC_FINISH_ERROR);
static_assert(static_cast<int>(LogLevel::kError) == SPECDEC_LOG_ERROR);

// Calls back once per completion, or once for news of the request alone. Returns whether the
// request is to go on.
bool report(const RequestOutput& output, specdec_output_callback callback, void* user_data) {
  if (callback == nullptr) return true;
  const LogprobsView prompt_logprobs(output.new_prompt_logprobs);
  specdec_output shown = {};
  shown.request_id = output.request_id;
  shown.index = -1;
  shown.prompt_logprobs = prompt_logprobs.get();
  shown.stop_token_id = -1;
  shown.error = output.error.empty() ? nullptr : output.error.c_str();
  if (output.outputs.empty()) {
    if (!output.error.empty()) shown.finish_reason = SPECDEC_FINISH_ERROR;
    shown.request_finished = output.finished;
    return callback(&shown, user_data) == 0;
  }
  for (const CompletionOutput& completion : output.outputs) {
    const LogprobsView logprobs(completion.new_logprobs);
    const AcceptanceStats acceptance = completion.acceptance.value_or(AcceptanceStats{});
    shown.index = completion.index;
    shown.num_token_ids = completion.new_token_ids.size();
    shown.token_ids = completion.new_token_ids.data();
    shown.logprobs = logprobs.get();
    shown.finish_reason = static_cast<specdec_finish_reason>(completion.finish_reason);
    shown.stop_token_id = completion.stop_token_id.value_or(-1);
    shown.request_finished = output.finished && &completion == &output.outputs.back();
    shown.num_steps = acceptance.num_steps;
    shown.num_draft_tokens = acceptance.num_draft_tokens;
    shown.num_accepted_tokens = acceptance.num_accepted_tokens;
    if (callback(&shown, user_data) != 0) return false;
    shown.prompt_logprobs = {};
  }
  return true;
}

PreparedRequest request_of(const specdec_engine& handle, const int32_t* prompt,
                           size_t num_prompt_tokens, const char* params_json) {
  if (num_prompt_tokens > 0) required("prompt", prompt);
  RequestArguments arguments = request_arguments_of(text_of(params_json), handle.eos_token_ids);
  return {handle.engine.model_info(), std::vector<int32_t>(prompt, prompt + num_prompt_tokens),
          std::move(arguments.params), std::move(arguments.options)};
}

// Reports one step's outputs, also those of the step in which the engine fails.
void run_step(Engine& engine, specdec_output_callback callback, void* user_data) {
  if (const std::exception_ptr failure = engine.failure()) std::rethrow_exception(failure);
  for (const RequestOutput& output : engine.step()) {
    if (!report(output, callback, user_data)) engine.abort(output.request_id);
  }
  if (const std::exception_ptr failure = engine.failure()) std::rethrow_exception(failure);
}

}  // namespace
}  // namespace specdec

using specdec::guarded;
using specdec::required;
using specdec::result_of;
using specdec::set_string;

const char* specdec_version(void) {
  static const std::string version = specdec::build_info().version;
  return version.c_str();
}

int specdec_api_version(void) { return SPECDEC_API_VERSION; }

const char* specdec_status_name(specdec_status status) {
  switch (status) {
    case SPECDEC_OK:
      return "ok";
    case SPECDEC_INVALID_ARGUMENT:
      return "invalid argument";
    case SPECDEC_CHECKPOINT_ERROR:
      return "checkpoint error";
    case SPECDEC_OUT_OF_MEMORY:
      return "out of memory";
    case SPECDEC_UNAVAILABLE:
      return "unavailable";
    case SPECDEC_ENGINE_FAILED:
      return "engine failed";
    case SPECDEC_RANK_FAILURE:
      return "rank failure";
    case SPECDEC_INTERNAL_ERROR:
      return "internal error";
  }
  return "unknown status";
}

void specdec_free(char* text) { std::free(text); }

void specdec_set_log_callback(specdec_log_callback callback, void* user_data) {
  guarded(nullptr, [&] {
    if (callback == nullptr) return specdec::set_log_sink({});
    specdec::set_log_sink(
        [callback, user_data](specdec::LogLevel level, const std::string& message) {
          callback(static_cast<specdec_log_level>(level), message.c_str(), user_data);
        });
  });
}

specdec_status specdec_engine_open(const char* options_json, specdec_engine** engine,
                                   char** error) {
  if (engine != nullptr) *engine = nullptr;
  return guarded(error, [&] {
    required("engine", engine);
    const specdec::EngineConfig config =
        specdec::engine_config_of(&required("options_json", options_json));
    *engine =
        new specdec_engine{specdec::Engine(config), specdec::load_eos_token_ids(config.model)};
  });
}

void specdec_engine_close(specdec_engine* engine) { delete engine; }

specdec_status specdec_engine_info(const specdec_engine* engine, char** json, char** error) {
  return guarded(error, [&] {
    const specdec_engine& handle = required("engine", engine);
    required("json", json);
    set_string(json, specdec::json_of(handle.engine.model_info(), handle.eos_token_ids));
  });
}

specdec_status specdec_generate(specdec_engine* engine, const int32_t* prompt,
                                size_t num_prompt_tokens, const char* params_json,
                                specdec_output_callback callback, void* user_data, char** error) {
  return guarded(error, [&] {
    specdec_engine& handle = required("engine", engine);
    handle.engine.generate({specdec::request_of(handle, prompt, num_prompt_tokens, params_json)},
                           [&](const specdec::RequestOutput& output) {
                             return specdec::report(output, callback, user_data);
                           });
  });
}

specdec_status specdec_add_request(specdec_engine* engine, uint64_t request_id,
                                   const int32_t* prompt, size_t num_prompt_tokens,
                                   const char* params_json, char** error) {
  return guarded(error, [&] {
    specdec_engine& handle = required("engine", engine);
    handle.engine.add_request(request_id,
                              specdec::request_of(handle, prompt, num_prompt_tokens, params_json));
  });
}

specdec_status specdec_step(specdec_engine* engine, specdec_output_callback callback,
                            void* user_data, char** error) {
  return guarded(
      error, [&] { specdec::run_step(required("engine", engine).engine, callback, user_data); });
}

int specdec_has_unfinished_requests(const specdec_engine* engine) {
  return engine != nullptr && engine->engine.has_unfinished_requests() ? 1 : 0;
}

int specdec_abort_request(specdec_engine* engine, uint64_t request_id) {
  return result_of(0,
                   [&] { return engine != nullptr && engine->engine.abort(request_id) ? 1 : 0; });
}

int specdec_stop_completion(specdec_engine* engine, uint64_t request_id, int32_t index) {
  return result_of(0, [&] {
    return engine != nullptr && engine->engine.stop_completion(request_id, index) ? 1 : 0;
  });
}

specdec_status specdec_engine_stats(const specdec_engine* engine, char** json, char** error) {
  return guarded(error, [&] {
    const specdec_engine& handle = required("engine", engine);
    required("json", json);
    set_string(json, specdec::json_of(handle.engine.stats()));
  });
}

int32_t specdec_reset_prefix_cache(specdec_engine* engine) {
  return result_of(0, [&] { return engine == nullptr ? 0 : engine->engine.reset_prefix_cache(); });
}
