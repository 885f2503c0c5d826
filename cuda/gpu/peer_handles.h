// How memory of one rank is named to another: by a number where both are threads of one process,
// and by what the driver gives where they are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct PeerHandle {
  uint64_t process = 0;  // a random number of its own
  uint64_t host = 0;     // likewise, of the running system
  uint64_t number = 0;   // of the memory, in its process
  uint64_t gpu = 0;      // that it lies on: the same number in all processes
  int32_t device = 0;    // of the process
  uint32_t reserved = 0;
  std::byte driver[64] = {};  // a cudaIpcMemHandle_t
};

// Throws Unavailable where they say no.
void require_peer_memory(const LaunchSettings& settings);

uint64_t number_of_process();
uint64_t number_of_host();

// Enters memory of this process, for as long as it lives.
PeerHandle enter_peer_memory(const std::shared_ptr<PeerMemory>& memory, int device, uint64_t gpu);
// Null where the memory is another process's, or has gone.
std::shared_ptr<PeerMemory> find_peer_memory(const PeerHandle& handle);

std::vector<std::byte> bytes_of(const PeerHandle& handle);
PeerHandle handle_from(std::span<const std::byte> bytes);

}  // namespace specdec::cuda
