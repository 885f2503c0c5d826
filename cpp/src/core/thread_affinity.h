// The CPUs on which the operating system lets threads run.
#pragma once

#include <vector>

namespace specdec {

inline constexpr int kMaxCpus = 16384;  // machines go past the 1024 of Linux's cpu_set_t

// Logical CPUs in the calling thread's affinity mask, ascending. macOS has no masks: there they are
// as many as it has performance cores, onto which it puts busy threads by itself.
std::vector<int> allowed_cpus();

// Keeps the calling thread on `cpus`. False: the kernel refuses, or has no such call.
bool set_allowed_cpus(const std::vector<int>& cpus);

}  // namespace specdec
