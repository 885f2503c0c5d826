// Ranks as threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace specdec {

// One communicator per rank. Destroying a rank's communicator leaves the group, which ends the
// others' waits for that rank.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, std::chrono::milliseconds timeout);

}  // namespace specdec
