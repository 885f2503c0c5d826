// The CPUs and memory nodes that this process may use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/thread_affinity.h"

namespace specdec {

// The allowed CPUs by memory node.
struct CpuTopology {
  struct Node {
    std::vector<int> cpus;   // ascending
    std::vector<int> cores;  // the first CPU of each physical core
  };
  std::vector<Node> nodes;  // nodes with an allowed CPU, at least one

  int num_slow_cores = 0;  // efficiency cores: see num_fast_cores

  int num_cpus() const;
  int num_cores() const;
  // Cores with at least two thirds of the fastest core's capacity. A thread on a slower core would
  // hold up every parallel loop.
  int num_fast_cores() const { return num_cores() - num_slow_cores; }
};

// Reads cpu*/topology, cpu*/cpu_capacity (of ARM) and node*/cpulist under `sys`. CPUs without these
// files count as single-threaded, equally fast cores of one node.
CpuTopology read_cpu_topology(const std::vector<int>& allowed,
                              const std::string& sys = "/sys/devices/system");

// The node on which each of a pool's threads belongs: nodes in order, each with its share of the
// threads. The kernel chooses the CPU within a node, because it knows what else runs there. Empty
// where placing gains nothing: with one node, or with more threads than CPUs.
std::vector<int> assign_nodes(const CpuTopology& topology, int num_threads);

// The CPUs of a list as the kernel writes it ("0-3,8"), ascending; empty when it is malformed.
std::vector<int> parse_cpu_list(std::string_view text);

// CPUs' worth of time that the control group grants per period, rounded down; 0: no limit.
int cgroup_cpu_limit();

// The limit in a cgroup v2 cpu.max file ("max 100000", "150000 100000"), as above; 0: none.
int parse_cpu_max(std::string_view text);

// Keeps the calling thread on some CPUs for as long as it lives. Without CPUs, or where the kernel
// refuses, it does nothing.
class AffinityScope {
 public:
  explicit AffinityScope(const std::vector<int>& cpus);
  ~AffinityScope();
  AffinityScope(const AffinityScope&) = delete;
  AffinityScope& operator=(const AffinityScope&) = delete;

 private:
  std::vector<int> before_;
};

}  // namespace specdec
