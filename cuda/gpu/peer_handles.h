// Handles by which one rank names its memory to another: a number for threads of one process, a
// driver's IPC handle between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct PeerHandle {
  uint64_t process = 0;  // the process's random number
  uint64_t host = 0;     // the running system's random number
  uint64_t number = 0;   // of this memory within its process
  uint64_t gpu = 0;      // of the memory's GPU: the same in all processes
  int32_t device = 0;    // index in the process that shares it
  uint32_t reserved = 0;
  std::byte driver[64] = {};  // a cudaIpcMemHandle_t
};

// Throws Unavailable without settings.peer_memory.
void require_peer_memory(const LaunchSettings& settings);

uint64_t number_of_process();
uint64_t number_of_host();

// Registers memory of this process, for as long as it lives.
PeerHandle enter_peer_memory(const std::shared_ptr<PeerMemory>& memory, int device, uint64_t gpu);
// Null if the memory is another process's, or was freed.
std::shared_ptr<PeerMemory> find_peer_memory(const PeerHandle& handle);

std::vector<std::byte> bytes_of(const PeerHandle& handle);
PeerHandle handle_from(std::span<const std::byte> bytes);

}  // namespace specdec::cuda
