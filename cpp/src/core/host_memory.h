// Memory of the host beyond what Buffer hands out.
#pragma once

#include <cstdint>

namespace specdec {

// MemAvailable of the machine, or what is left of a cgroup limit where that is less. Bytes; 0 when
// it cannot be read.
int64_t available_host_memory_bytes();

// Gives memory the heap keeps for later back to the system.
void release_free_heap();

}  // namespace specdec
