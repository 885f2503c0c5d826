#include "testing/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
thread_local int64_t until_failure = -1;
}  // namespace

void* operator new(size_t size) {
  ++count;
  if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
// Sanitizers bring their own of this form, which the operators below would not match.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(size);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace specdec::testing {

int64_t num_allocations() { return count; }
void fail_after(int64_t num_allocations) { until_failure = num_allocations; }
int64_t num_until_failure() { return until_failure; }

}  // namespace specdec::testing
