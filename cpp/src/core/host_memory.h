// Memory of the host beyond what Buffer hands out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec {

// Bytes of memory that this process can still get: MemAvailable of the machine, or the rest of a
// cgroup limit where that is less. 0 when neither can be read.
int64_t available_host_memory_bytes();

// Bytes of a page, the smallest unit that can be mapped or protected.
size_t page_bytes();

// Gives memory that the heap holds for later use back to the system.
void release_free_heap();

}  // namespace specdec
