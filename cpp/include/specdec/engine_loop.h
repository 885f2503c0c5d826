// An engine with its own stepping thread, for callers on several threads.
//
//   specdec::EngineLoop loop(config);
//   loop.add({{.id = 1, .request = {loop.model_info(), {1, 2, 3}, params}}});
//   while (auto batch = loop.take_outputs()) {
//     for (const specdec::LoopOutput& output : batch->outputs) ...
//   }
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "specdec/engine.h"

namespace specdec {

// A request for EngineLoop::add.
struct LoopRequest {
  uint64_t id = 0;  // the caller's, different from that of every other unfinished request
  PreparedRequest request;
  std::shared_ptr<void> context = nullptr;  // the caller's; every output of the request has it
  bool by_step = false;  // advances only while other requests run, and in steps of ask_for_step()
};

struct LoopOutput {
  std::shared_ptr<void> context;
  RequestOutput output;
};

// Every method may be called from any thread. Only close(), stats(), reset_prefix_cache() and
// take_outputs() wait; the others queue what the thread does between two steps. The thread runs a
// few steps ahead of whoever takes the outputs, and then waits for take_outputs().
class EngineLoop {
 public:
  // Loads the checkpoint on the new thread. Throws what Engine's constructor does.
  explicit EngineLoop(const EngineConfig& config);
  // The same with an engine that `make` makes there.
  explicit EngineLoop(const std::function<Engine()>& make);
  // Like close(), but in the loop's own thread (from a custom drafter) it does not wait.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  const ModelInfo& model_info() const;

  // Queues all of the requests, or none: throws InvalidArgument (an id in use, a request for
  // another engine), EngineFailed or Unavailable (the loop is closed).
  void add(std::vector<LoopRequest> requests);

  // Ends a request; its last output has FinishReason::kAbort. An unknown id is no error.
  void abort(uint64_t id);

  // Ends a completion because its text is complete. Outputs of steps under way still come; after
  // the last completion of a request nothing more comes.
  void stop_completion(uint64_t id, int index);

  // Asks for a step even if only `by_step` requests are left. Returns its number.
  uint64_t ask_for_step();

  struct Batch {
    std::vector<LoopOutput> outputs;  // in the order in which they came to be
    uint64_t last_answered_step = 0;  // the steps asked for up to this number were taken
  };
  // Waits for outputs, or for the answer to ask_for_step(). Nothing once the loop has ended and
  // everything was taken. Outputs stay in the loop until they are taken, so none is lost.
  std::optional<Batch> take_outputs();

  // The engine's methods of these names, called between two steps. They throw Unavailable once the
  // loop has ended, and when called from the loop's own thread.
  EngineStats stats();
  int reset_prefix_cache();

  // How busy the engine is, without waiting for it: the state after the last step, with requests
  // queued since counted as waiting. Once the loop has ended, nothing runs or waits.
  EngineLoad load() const;

  // The error that ended the engine, EngineFailed or RankFailure, without waiting for a step; null
  // while it works. The death of a rank is noticed within a second, even while no request runs.
  std::exception_ptr failure() const;

  // Whether the caller is the thread that steps, which custom drafters run in.
  bool is_loop_thread() const;

  // Ends the loop after the step under way: unfinished requests are aborted.
  void stop();
  // stop(), then waits for the end and frees the model. Throws Unavailable in the loop's own
  // thread.
  void close();

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  static void step_until_stopped(State& state);

  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace specdec
