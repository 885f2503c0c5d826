// The ranks of an engine on several devices. Rank 0 leads: it is the engine. The other ranks load
// their shares of the same models and repeat the leader's calls.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine_models.h"
#include "runtime/leading_runner.h"
#include "runtime/rank_calls.h"
#include "specdec/config.h"
#include "specdec/error.h"

namespace specdec {

// The leader's side, which lives as long as the engine.
class Ranks {
 public:
  // Starts the other ranks, or joins ranks that were started with this process; null where the
  // engine is on one device.
  static std::unique_ptr<Ranks> start(const EngineConfig& config, const BackendMaker& make_backend);
  ~Ranks();

  // Returns what `load` returns. If `load` fails because a rank in another thread failed, throws
  // that rank's error instead.
  template <class Load>
  static auto loading(Ranks* ranks, Load&& load) {
    try {
      return load();
    } catch (const RankFailure&) {
      if (ranks != nullptr) ranks->rethrow_cause();
      throw;
    }
  }

  // The others repeat the calls of these models, which have their caches, from now on.
  void lead(EngineModels& models);
  // The others end. While the models live.
  void stop();

  Communicator& group() { return *group_; }
  // Once the models are led.
  RankCalls& calls() { return *calls_; }

 private:
  explicit Ranks(std::unique_ptr<Communicator> group);
  // Waits for the threads of a group that has failed. Throws the first error that is a rank's own.
  void rethrow_cause();
  void join_threads();

  std::unique_ptr<Communicator> group_;
  std::optional<RankCalls> calls_;     // from lead() to stop()
  std::deque<LeadingRunner> leading_;  // by model
  bool has_stopped_ = false;
  std::vector<std::thread> threads_;
  std::vector<std::exception_ptr> errors_;  // that have ended a thread, by rank
};

// Runs a rank that does not lead. Returns when the leader stops; an error here ends the group, with
// its message as the cause.
void serve_rank(const EngineConfig& config, const BackendMaker& make_backend, Communicator& group);

}  // namespace specdec
