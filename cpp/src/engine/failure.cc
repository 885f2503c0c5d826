#include "engine/failure.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/stopwatch.h"
#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kLessMemory =
    "; lower max_num_batched_tokens or max_num_seqs, or on a GPU gpu_memory_utilization";

// EngineFailed with that message, RankFailure where the error is one.
std::exception_ptr with_message(const std::exception_ptr& error, const std::string& message) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailure& failure) {
    return std::make_exception_ptr(failure.with_message(message));
  } catch (...) {
    return std::make_exception_ptr(EngineFailed(message));
  }
}

}  // namespace

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory& exception) {
    return str_cat(exception.what(), kLessMemory);
  } catch (const std::bad_alloc&) {
    return str_cat("out of memory", kLessMemory);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown error";
  }
}

// The step's other requests are unharmed.
void Engine::Impl::fail_requests(const std::vector<Failure>& failures, Outputs& outputs) {
  for (const Failure& failure : failures) {
    Request& request = completions_.at(failure.sequence)->request;
    if (request.is_finished()) continue;
    RequestOutput& output = output_of(outputs, request);
    output.error = failure.message;
    for (const auto& completion : request.completions) {
      if (completion->sequence.is_finished()) continue;
      finish(*completion, FinishReason::kError);
      const auto reported =
          std::ranges::find(output.outputs, completion->index, &CompletionOutput::index);
      CompletionOutput& part =
          reported != output.outputs.end() ? *reported : output.outputs.emplace_back();
      part.index = completion->index;
      part.finish_reason = FinishReason::kError;
    }
  }
}

// The step may have left anything in a broken state, so only the requests are read.
std::vector<RequestOutput> Engine::Impl::fail_engine(const std::exception_ptr& error) {
  const std::string message =
      str_cat("the engine has failed: ", message_of(error), "; make a new engine");
  if (ranks_ != nullptr) ranks_->group().abort(message_of(error));
  failure_ = with_message(error, message);
  Outputs outputs;
  for (const auto& [id, request] : requests_) {
    RequestOutput& output = output_of(outputs, *request);
    output.error = message;
    output.engine_failure = failure_;
    output.finished = true;
    request->metrics.finished_time = now_seconds();
    output.metrics = request->metrics;
    for (const auto& completion : request->completions) {
      if (completion->sequence.is_finished()) continue;
      CompletionOutput& part = output.outputs.emplace_back();
      part.index = completion->index;
      part.finish_reason = FinishReason::kError;
    }
  }
  std::vector<RequestOutput> ordered;
  ordered.reserve(outputs.size());
  move_in_order(outputs, ordered);
  stats_.num_finished_requests += static_cast<int64_t>(requests_.size());
  scheduler_->forget_all();
  completions_.clear();
  requests_.clear();
  num_waiting_ = 0;
  num_waiting_tokens_ = 0;
  return ordered;
}

}  // namespace specdec
