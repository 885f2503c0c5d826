// How much memory this process may still take on the host.
#pragma once

#include <cstdint>

namespace specdec {

// MemAvailable of the machine, or what is left of a cgroup limit where that is less. Bytes; 0 when
// it cannot be read.
int64_t available_host_memory_bytes();

}  // namespace specdec
