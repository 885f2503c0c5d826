#include "core/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "core/str_cat.h"

namespace specdec {
namespace {

// First line of a small kernel file; empty when it cannot be read.
std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int whole_cpus(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::max<int64_t>(1, quota / period));
}

int tighter(int a, int b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// The path of this process's group in the v2 hierarchy, or in the v1 one of the cpu controller.
std::string cgroup_path(bool v2) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = str_cat(",", line.substr(first + 1, second - first - 1), ",");
    const bool matches = v2 ? controllers == ",," : controllers.find(",cpu,") != std::string::npos;
    if (matches) return line.substr(second + 1);
  }
  return "/";
}

// CPUs the affinity mask allows. The mask is asked for with room for machines past 1024 CPUs.
std::set<int> allowed_cpus() {
  constexpr int kMaxCpus = 16384;
  std::set<int> cpus;
  cpu_set_t* mask = CPU_ALLOC(kMaxCpus);
  if (mask == nullptr) return cpus;
  const size_t mask_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(mask_bytes, mask);
  if (sched_getaffinity(0, mask_bytes, mask) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, mask_bytes, mask)) cpus.insert(cpu);
    }
  }
  CPU_FREE(mask);
  return cpus;
}

}  // namespace

int num_allowed_cpus() { return std::max<int>(1, static_cast<int>(allowed_cpus().size())); }

int num_allowed_physical_cores() {
  std::set<std::string> cores;
  for (int cpu : allowed_cpus()) {
    const std::string siblings =
        read_line(str_cat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    cores.insert(siblings.empty() ? str_cat("cpu", cpu) : siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

int parse_cpu_max(std::string_view text) {
  std::istringstream stream{std::string(text)};
  int64_t quota = 0;
  int64_t period = 0;
  if (!(stream >> quota >> period)) return 0;  // "max ..." is no number
  return whole_cpus(quota, period);
}

int cgroup_cpu_limit() {
  int limit = 0;
  // A limit on any ancestor binds, so every group up to the root is read.
  const auto for_each_group = [](const std::string& root, std::string group, auto&& read) {
    for (;;) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      read(root + group);
      if (group.empty()) return;
      group.erase(group.find_last_of('/'));
    }
  };
  for_each_group("/sys/fs/cgroup", cgroup_path(true), [&](const std::string& group) {
    limit = tighter(limit, parse_cpu_max(read_line(group + "/cpu.max")));
  });
  for_each_group("/sys/fs/cgroup/cpu", cgroup_path(false), [&](const std::string& group) {
    limit = tighter(limit, parse_cpu_max(str_cat(read_line(group + "/cpu.cfs_quota_us"), " ",
                                                 read_line(group + "/cpu.cfs_period_us"))));
  });
  return limit;
}

}  // namespace specdec
