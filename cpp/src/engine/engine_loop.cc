#include "specdec/engine_loop.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Commands that callers queue for the thread.
struct Add {
  uint64_t id;
  PreparedRequest request;
};
struct Abort {
  uint64_t id;
};
struct StopCompletion {
  uint64_t id;
  int index;
};
using Call = std::packaged_task<void(Engine&)>;
using Command = std::variant<Add, Abort, StopCompletion, Call>;

// An unfinished request, as last reported to callers.
struct Unfinished {
  std::shared_ptr<void> context;
  bool by_step;
  std::vector<bool> is_open;  // by completion
  RequestMetrics metrics;     // last reported

  void close(int index) {
    if (index >= 0 && index < static_cast<int>(is_open.size())) is_open[index] = false;
  }
  bool any_open() const { return std::ranges::find(is_open, true) != is_open.end(); }
};

// How far the loop runs ahead of the caller that takes the outputs: steps past a stop string are
// wasted.
constexpr int kMostStepsAhead = 4;

// How soon a loop that has nothing to do sees that a rank is gone.
constexpr std::chrono::milliseconds kBetweenChecks{500};

[[noreturn]] void throw_closed() { throw Unavailable("the engine is closed"); }

RequestOutput ended(uint64_t id) {
  RequestOutput output;
  output.request_id = id;
  output.finished = true;
  return output;
}

}  // namespace

struct EngineLoop::State {
  std::thread thread;
  std::mutex join_mutex;                   // one caller of close() joins the thread
  std::atomic<std::thread::id> thread_id;  // none once it has ended: ids are used again
  pid_t process = getpid();
  ModelInfo info;

  mutable std::mutex mutex;      // guards the following members; never held while the engine works
  std::condition_variable wake;  // the thread has something to do
  std::condition_variable news;  // take_outputs() has something to return
  std::shared_ptr<Engine> engine;  // null once the loop has ended; only the thread changes it
  std::vector<Command> commands;
  std::unordered_map<uint64_t, Unfinished> unfinished;
  int num_running_freely = 0;  // entries of `unfinished` that are not by_step
  uint64_t last_asked_step = 0;
  Batch batch;  // outputs that were not taken yet
  uint64_t last_taken_step = 0;
  EngineLoad load;     // of the engine, as of the last step
  int num_queued = 0;  // requests among the commands, or among those the thread executes
  int64_t num_queued_tokens = 0;
  int num_steps_ahead = 0;     // steps whose outputs were not taken yet
  std::exception_ptr failure;  // of the engine, once it has failed
  bool is_stopping = false;
  bool has_ended = false;

  bool wants_step() const {
    return num_steps_ahead < kMostStepsAhead &&
           (num_running_freely > 0 || batch.last_answered_step < last_asked_step);
  }

  bool has_news() const {
    return !batch.outputs.empty() || batch.last_answered_step != last_taken_step;
  }

  // With the mutex held. The context must outlive the lock: giving it up may run callers' code.
  [[nodiscard]] std::shared_ptr<void> forget(uint64_t id) {
    auto node = unfinished.extract(id);
    if (!node.mapped().by_step) --num_running_freely;
    return std::move(node.mapped().context);
  }

  // With the mutex held: hands an output to take_outputs(), unless its request is done with.
  void publish(RequestOutput output) {
    const uint64_t id = output.request_id;
    const auto found = unfinished.find(id);
    if (found == unfinished.end()) return;
    Unfinished& request = found->second;
    for (const CompletionOutput& part : output.outputs) {
      if (part.finish_reason != FinishReason::kNone) request.close(part.index);
    }
    if (output.metrics.arrival_time == 0) output.metrics = request.metrics;
    request.metrics = output.metrics;
    LoopOutput entry{.context = request.context, .output = std::move(output)};
    // If the request's last completions were stopped meanwhile, that command ends the request and
    // reports nothing.
    if (!request.any_open()) entry.output.finished = true;
    if (entry.output.finished) {
      for (int i = 0; i < static_cast<int>(request.is_open.size()); ++i) {
        if (!request.is_open[i]) continue;
        CompletionOutput& part = entry.output.outputs.emplace_back();
        part.index = i;
        part.finish_reason =
            entry.output.error.empty() ? FinishReason::kAbort : FinishReason::kError;
      }
      entry.context = forget(id);
    }
    batch.outputs.push_back(std::move(entry));
  }

  // In the thread, without the mutex.
  void execute(Command& command, std::vector<RequestOutput>& outputs) {
    if (auto* add = std::get_if<Add>(&command)) {
      try {
        engine->add_request(add->id, add->request);
      } catch (const std::exception& error) {  // the engine failed meanwhile, or lacks memory
        RequestOutput& output = outputs.emplace_back(ended(add->id));
        output.error = error.what();
        output.engine_failure = engine->failure();
      }
    } else if (const auto* abort = std::get_if<Abort>(&command)) {
      engine->abort(abort->id);
      outputs.push_back(ended(abort->id));
    } else if (const auto* stop = std::get_if<StopCompletion>(&command)) {
      engine->stop_completion(stop->id, stop->index);
    } else {
      std::get<Call>(command)(*engine);
    }
  }

  // Runs a function of the engine between two steps and waits for it.
  void call(const std::function<void(Engine&)>& function) {
    std::future<void> done;
    {
      const std::scoped_lock lock(mutex);
      if (is_stopping) throw_closed();
      if (std::this_thread::get_id() == thread_id) {
        throw Unavailable("the loop's own thread cannot wait for the loop");
      }
      done = std::get<Call>(commands.emplace_back(Call(function))).get_future();
    }
    wake.notify_one();
    try {
      done.get();
    } catch (const std::future_error&) {  // the loop ended first
      throw_closed();
    }
  }
};

EngineLoop::EngineLoop(const EngineConfig& config)
    : EngineLoop([&config] { return Engine(config); }) {}

EngineLoop::EngineLoop(const std::function<Engine()>& make) : state_(std::make_shared<State>()) {
  std::promise<void> loaded;
  state_->thread = std::thread([&loaded, &make, state = state_] {
    state->thread_id = std::this_thread::get_id();
    try {
      // The stepping thread also loads, because memory is placed near the thread that first writes
      // it.
      state->engine = std::make_shared<Engine>(make());
      state->info = state->engine->model_info();
      state->load = state->engine->load();
    } catch (...) {
      loaded.set_exception(std::current_exception());
      return;
    }
    loaded.set_value();
    run(state);
  });
  try {
    loaded.get_future().get();
  } catch (...) {
    state_->thread.join();
    throw;
  }
}

EngineLoop::~EngineLoop() {
  if (getpid() != state_->process) {
    // A forked child has a copy of the engine's memory, but none of its threads. Nothing can be
    // waited for there, so the copy is left as it is.
    new std::shared_ptr<State>(state_);
  } else if (is_loop_thread()) {
    stop();
    state_->thread.detach();
  } else {
    close();
  }
}

const ModelInfo& EngineLoop::model_info() const { return state_->info; }
bool EngineLoop::is_loop_thread() const { return std::this_thread::get_id() == state_->thread_id; }

void EngineLoop::add(std::vector<LoopRequest> requests) {
  for (const LoopRequest& request : requests) request.request.check_for(state_->info);
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->is_stopping) throw_closed();
    if (state_->failure) std::rethrow_exception(state_->failure);
    std::unordered_set<uint64_t> ids;
    for (const LoopRequest& request : requests) {
      if (state_->unfinished.contains(request.id) || !ids.insert(request.id).second) {
        throw InvalidArgument("id", str_cat(request.id, " is in use by an unfinished request"));
      }
    }
    for (LoopRequest& request : requests) {
      state_->unfinished.emplace(
          request.id, Unfinished{.context = std::move(request.context),
                                 .by_step = request.by_step,
                                 .is_open = std::vector<bool>(request.request.params().n, true),
                                 .metrics = {}});
      if (!request.by_step) ++state_->num_running_freely;
      ++state_->num_queued;
      state_->num_queued_tokens += static_cast<int64_t>(request.request.prompt_token_ids().size());
      state_->commands.emplace_back(Add{request.id, std::move(request.request)});
    }
  }
  state_->wake.notify_one();
}

void EngineLoop::abort(uint64_t id) {
  if (getpid() != state_->process) return;  // a forked child's copy: the lock may be held for good
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->is_stopping || !state_->unfinished.contains(id)) return;
    state_->commands.emplace_back(Abort{id});
  }
  state_->wake.notify_one();
}

void EngineLoop::stop_completion(uint64_t id, int index) {
  std::shared_ptr<void> context;
  {
    const std::scoped_lock lock(state_->mutex);
    const auto found = state_->unfinished.find(id);
    if (found == state_->unfinished.end()) return;
    found->second.close(index);
    if (!found->second.any_open()) context = state_->forget(id);
    state_->commands.emplace_back(StopCompletion{id, index});
  }
  state_->wake.notify_one();
}

uint64_t EngineLoop::ask_for_step() {
  uint64_t number = 0;
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->is_stopping) throw_closed();
    number = ++state_->last_asked_step;
  }
  state_->wake.notify_one();
  return number;
}

void EngineLoop::run(const std::shared_ptr<State>& state) {
  std::string error;
  try {
    step_until_stopped(*state);
  } catch (const std::exception& caught) {  // memory ran out outside of the engine
    error = str_cat("the engine has failed: ", caught.what(), "; make a new engine");
  }
  std::unique_lock lock(state->mutex);
  state->is_stopping = true;
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : state->unfinished) ids.push_back(id);
  std::ranges::sort(ids);
  for (uint64_t id : ids) {
    RequestOutput output = ended(id);
    output.error = error;
    if (!error.empty()) output.engine_failure = std::make_exception_ptr(EngineFailed(error));
    state->publish(std::move(output));
  }
  state->has_ended = true;
  state->load = {.num_free_kv_blocks = state->load.num_kv_blocks,
                 .num_kv_blocks = state->load.num_kv_blocks};
  state->num_queued = 0;
  state->num_queued_tokens = 0;
  std::shared_ptr<Engine> engine = std::exchange(state->engine, nullptr);
  std::vector<Command> commands = std::exchange(state->commands, {});  // calls get a future_error
  lock.unlock();
  commands.clear();
  engine.reset();
  state->thread_id = std::thread::id();
  state->news.notify_all();
}

void EngineLoop::step_until_stopped(State& state) {
  std::unique_lock lock(state.mutex);
  std::vector<RequestOutput> outputs;
  const bool has_ranks = state.engine->has_ranks();
  const auto has_work = [&state] {
    return state.is_stopping || !state.commands.empty() || state.wants_step();
  };
  while (true) {
    bool must_check = false;
    if (has_ranks && !state.failure) {
      must_check = !state.wake.wait_for(lock, kBetweenChecks, has_work);
    } else {
      state.wake.wait(lock, has_work);
    }
    if (state.is_stopping) return;
    std::vector<Command> commands = std::exchange(state.commands, {});
    const int num_queued = state.num_queued;
    const int64_t num_queued_tokens = state.num_queued_tokens;
    const bool wants_step = state.wants_step();
    const uint64_t asked_step = state.last_asked_step;
    lock.unlock();
    outputs.clear();
    for (Command& command : commands) state.execute(command, outputs);
    commands.clear();  // cleared without the mutex: destroying parameters may need the GIL
    if (wants_step || must_check) {
      std::vector<RequestOutput> ended =
          wants_step ? state.engine->step() : state.engine->check_ranks();
      std::move(ended.begin(), ended.end(), std::back_inserter(outputs));
    }
    const EngineLoad load = state.engine->load();
    lock.lock();
    state.load = load;
    state.failure = state.engine->failure();
    state.num_queued -= num_queued;
    state.num_queued_tokens -= num_queued_tokens;
    for (RequestOutput& output : outputs) state.publish(std::move(output));
    if (wants_step) {
      state.batch.last_answered_step = asked_step;
      if (!state.batch.outputs.empty()) ++state.num_steps_ahead;
    }
    if (state.has_news()) state.news.notify_all();
  }
}

std::optional<EngineLoop::Batch> EngineLoop::take_outputs() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.news.wait(lock, [&state] { return state.has_ended || state.has_news(); });
  if (state.batch.outputs.empty() && state.has_ended) return std::nullopt;
  state.last_taken_step = state.batch.last_answered_step;
  state.num_steps_ahead = 0;
  state.wake.notify_one();
  return Batch{.outputs = std::exchange(state.batch.outputs, {}),
               .last_answered_step = state.last_taken_step};
}

EngineStats EngineLoop::stats() {
  EngineStats stats;
  state_->call([&stats](Engine& engine) { stats = engine.stats(); });
  return stats;
}

std::exception_ptr EngineLoop::failure() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->failure;
}

int EngineLoop::reset_prefix_cache() {
  int num_dropped = 0;
  state_->call([&num_dropped](Engine& engine) { num_dropped = engine.reset_prefix_cache(); });
  return num_dropped;
}

EngineLoad EngineLoop::load() const {
  const std::scoped_lock lock(state_->mutex);
  EngineLoad load = state_->load;
  load.num_waiting += state_->num_queued;
  load.num_waiting_tokens += state_->num_queued_tokens;
  return load;
}

void EngineLoop::stop() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->is_stopping = true;
  }
  state_->wake.notify_one();
}

void EngineLoop::close() {
  if (is_loop_thread()) throw Unavailable("the loop's own thread cannot wait for the loop");
  stop();
  const std::scoped_lock lock(state_->join_mutex);
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace specdec
