// Linking allocation_count.cc into a test replaces the global operator new by one that counts and
// that can be told to fail once.
#pragma once

#include <cstdint>

namespace specdec::testing {

int64_t num_allocations();  // by all threads, since the program started

// After this many more allocations of this thread one throws std::bad_alloc; negative: none does.
void fail_after(int64_t num_allocations);
int64_t num_until_failure();  // negative: it has come, or none was to

}  // namespace specdec::testing
