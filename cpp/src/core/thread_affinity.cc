#include "core/thread_affinity.h"

#if defined(__linux__)
#include <sched.h>

#include <memory>
#else
#include <numeric>
#include <thread>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace specdec {

#if defined(__linux__)

namespace {

struct FreeMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};
using Mask = std::unique_ptr<cpu_set_t, FreeMask>;

Mask empty_mask() {
  Mask mask(CPU_ALLOC(kMaxCpus));
  if (mask != nullptr) CPU_ZERO_S(CPU_ALLOC_SIZE(kMaxCpus), mask.get());
  return mask;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  const size_t mask_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  const Mask mask = empty_mask();
  if (mask == nullptr || sched_getaffinity(0, mask_bytes, mask.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, mask_bytes, mask.get())) cpus.push_back(cpu);
  }
  return cpus;
}

bool set_allowed_cpus(const std::vector<int>& cpus) {
  const size_t mask_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  const Mask mask = empty_mask();
  if (mask == nullptr) return false;
  for (int cpu : cpus) CPU_SET_S(cpu, mask_bytes, mask.get());
  return sched_setaffinity(0, mask_bytes, mask.get()) == 0;
}

#else

std::vector<int> allowed_cpus() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__APPLE__)
  int fast = 0;
  size_t size_bytes = sizeof(fast);
  if (sysctlbyname("hw.perflevel0.logicalcpu", &fast, &size_bytes, nullptr, 0) == 0) count = fast;
#endif
  std::vector<int> cpus(count);
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

bool set_allowed_cpus(const std::vector<int>&) { return false; }

#endif

}  // namespace specdec
