// Linking allocation_count.cc into a test replaces the global operator new by one that counts.
#pragma once

#include <cstdint>

namespace specdec::testing {

int64_t num_allocations();  // by all threads, since the program started

}  // namespace specdec::testing
