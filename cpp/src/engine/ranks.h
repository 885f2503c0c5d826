// The ranks of an engine on several devices. Rank 0 leads: it is the engine. The others load their
// shares of the same models and repeat its calls.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine_models.h"
#include "runtime/rank_calls.h"
#include "specdec/config.h"

namespace specdec {

// What the leader holds while the engine lives.
class Ranks {
 public:
  // Starts the other ranks, or joins those that were started with this process; null where the
  // engine is on one device.
  static std::unique_ptr<Ranks> start(const EngineConfig& config, const BackendMaker& make_backend);
  ~Ranks();

  // The others repeat the calls of these models, which are loaded, from now on.
  void lead(EngineModels& models);

  Communicator& group() { return *group_; }
  RankCalls& calls() { return calls_; }

 private:
  explicit Ranks(std::unique_ptr<Communicator> group);

  std::unique_ptr<Communicator> group_;
  RankCalls calls_;
  bool leads_ = false;
  std::vector<std::thread> threads_;
};

// The life of a rank that does not lead. Returns when the leader stops; an error of its own ends
// the group, with its message as the cause.
void serve_rank(const EngineConfig& config, const BackendMaker& make_backend, Communicator& group);

}  // namespace specdec
