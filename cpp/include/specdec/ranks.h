// Processes that share an engine's models. Rank 0 is the engine; every other rank's process calls
// serve_rank() with the same configuration and does nothing else meanwhile.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "specdec/config.h"

namespace specdec {

class Communicator;
class ShmGroup;

// The processes of the other ranks, started by whoever makes the engine. They join by the name.
class RankGroup {
 public:
  // A group on this host ("mp").
  explicit RankGroup(int num_ranks);
  // A group over several hosts ("ray"). This process, rank 0, listens at an address of its own that
  // the other hosts reach, and a free port.
  RankGroup(int num_ranks, const std::string& host, int port);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const std::string& name() const { return name_; }
  // Ends a group on this host because of a failure of `rank`'s process. A group over several hosts
  // notices by itself.
  void fail(int rank, const std::string& cause);
  // As rank 0; waits until all have come.
  std::unique_ptr<Communicator> join(std::chrono::milliseconds timeout);

 private:
  int num_ranks_;
  std::unique_ptr<ShmGroup> shm_;  // null: several hosts
  std::string name_;
};

// Whether this process is rank 0 of the processes that torchrun started; true where
// distributed_executor_backend is not "external_launcher". Throws InvalidArgument where torchrun's
// environment is missing or has another number of ranks.
bool is_leading_rank(const EngineConfig& config);

// Runs a rank that does not lead: loads its share of the models and computes with the others until
// the engine is destroyed. With "mp" and "ray" it is rank `rank` of the group `name`; with
// "external_launcher" both come from torchrun's environment. Throws the errors of loading, and
// RankFailure.
void serve_rank(const EngineConfig& config, const std::string& name = "", int rank = 0);

}  // namespace specdec
