// Processes that share an engine's models. Rank 0 is the engine; every other rank's process calls
// serve_rank() with the same configuration and does nothing else meanwhile.
#pragma once

#include <memory>
#include <string>

#include "specdec/config.h"

namespace specdec {

class ShmGroup;

// Processes of one host, which the process of rank 0 starts ("mp"). The others join by the name.
class RankGroup {
 public:
  explicit RankGroup(int num_ranks);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const std::string& name() const;
  // Ends the group for what is known of that rank's process.
  void fail(int rank, const std::string& cause);
  ShmGroup& shm() { return *shm_; }

 private:
  std::unique_ptr<ShmGroup> shm_;
};

// Whether this process is rank 0 of the processes that mpirun or torchrun started; true where
// distributed_executor_backend is neither "mpi" nor "external_launcher". Throws InvalidArgument
// where the launcher's environment is missing or has another number of ranks, and Unavailable
// without MPI.
bool is_leading_rank(const EngineConfig& config);

// A rank that does not lead: loads its share of the models and computes with the others until the
// engine is destroyed. Of "mp" the rank is `rank` of the group `name`; of "mpi" and
// "external_launcher" both follow from the launcher. Throws what loading throws, and RankFailure.
void serve_rank(const EngineConfig& config, const std::string& name = "", int rank = 0);

}  // namespace specdec
