// How the ranks of an engine that are processes find each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "specdec/config.h"

namespace specdec {

// Rank and number of the processes that a launcher started.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
};

// The rank that torchrun ("external_launcher") has set for this process. Throws InvalidArgument
// where it has set none, or where the number of ranks is not the configuration's.
LaunchedRank launched_rank(const EngineConfig& config);

// The group that torchrun's processes form: at MASTER_ADDR and the port after MASTER_PORT, which
// torchrun itself listens at; or at SPECDEC_MASTER_PORT.
std::unique_ptr<Communicator> join_launched(const EngineConfig& config);

int num_ranks(const EngineConfig& config);
// Number of ranks on this host, which share its cores and memory: all ranks, unless torchrun says
// otherwise.
int num_ranks_of_host(const EngineConfig& config);
// Which of the devices visible to a rank's process belongs to it, counted from config.device. Ray
// shows each process only its own devices.
int device_of_rank(const EngineConfig& config, int rank);
std::chrono::milliseconds timeout_of(const EngineConfig& config);

}  // namespace specdec
