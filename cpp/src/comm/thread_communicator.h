// Ranks as threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace specdec {

// One for each rank. A rank whose communicator is destroyed has left its group, which ends the
// waits of the others for it.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, std::chrono::milliseconds timeout);

}  // namespace specdec
