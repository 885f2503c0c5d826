#include "core/cpu_topology.h"

#include <algorithm>
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

// Node numbers under `sys`, ascending.
std::vector<int> node_ids(const std::string& sys) {
  std::vector<int> ids = parse_cpu_list(read_line(sys + "/node/online"));
  if (ids.empty()) ids.push_back(0);
  return ids;
}

CpuTopology::Node make_node(std::vector<int> cpus, const std::string& sys) {
  CpuTopology::Node node;
  std::set<std::string> seen;
  for (int cpu : cpus) {
    const std::string siblings =
        read_line(str_cat(sys, "/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    if (siblings.empty() || seen.insert(siblings).second) node.cores.push_back(cpu);
  }
  node.cpus = std::move(cpus);
  return node;
}

int count_slow_cores(const CpuTopology& topology, const std::string& sys) {
  std::vector<int> capacities;  // the kernel's measure of speed: 1024 is the machine's fastest core
  for (const CpuTopology::Node& node : topology.nodes) {
    for (int cpu : node.cores) {
      std::istringstream line(read_line(str_cat(sys, "/cpu/cpu", cpu, "/cpu_capacity")));
      int capacity = 0;
      if (!(line >> capacity)) return 0;
      capacities.push_back(capacity);
    }
  }
  const int64_t most = *std::max_element(capacities.begin(), capacities.end());
  return static_cast<int>(std::count_if(capacities.begin(), capacities.end(),
                                        [&](int64_t capacity) { return 3 * capacity < 2 * most; }));
}

}  // namespace

AffinityScope::AffinityScope(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  before_ = allowed_cpus();
  if (!set_allowed_cpus(cpus)) before_.clear();
}

AffinityScope::~AffinityScope() {
  if (!before_.empty()) set_allowed_cpus(before_);
}

int CpuTopology::num_cpus() const {
  size_t count = 0;
  for (const Node& node : nodes) count += node.cpus.size();
  return static_cast<int>(count);
}

int CpuTopology::num_cores() const {
  size_t count = 0;
  for (const Node& node : nodes) count += node.cores.size();
  return static_cast<int>(count);
}

CpuTopology read_cpu_topology(const std::vector<int>& allowed, const std::string& sys) {
  CpuTopology topology;
  std::vector<int> rest = allowed;
  for (int id : node_ids(sys)) {
    std::vector<int> cpus;
    for (int cpu : parse_cpu_list(read_line(str_cat(sys, "/node/node", id, "/cpulist")))) {
      const auto found = std::find(rest.begin(), rest.end(), cpu);
      if (found == rest.end()) continue;
      cpus.push_back(cpu);
      rest.erase(found);
    }
    if (!cpus.empty()) topology.nodes.push_back(make_node(std::move(cpus), sys));
  }
  if (rest.empty() && topology.nodes.empty()) rest.push_back(0);  // the machine tells nothing
  if (!rest.empty()) topology.nodes.push_back(make_node(std::move(rest), sys));
  topology.num_slow_cores = count_slow_cores(topology, sys);
  return topology;
}

std::vector<int> assign_nodes(const CpuTopology& topology, int num_threads) {
  if (topology.nodes.size() < 2 || num_threads > topology.num_cpus()) return {};
  std::vector<int> owners;  // a node's number for each of its cores, or CPUs if those are needed
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    const auto& [cpus, cores] = topology.nodes[node];
    const size_t count = num_threads <= topology.num_cores() ? cores.size() : cpus.size();
    owners.insert(owners.end(), count, static_cast<int>(node));
  }
  std::vector<int> nodes;
  for (int64_t thread = 0; thread < num_threads; ++thread) {
    nodes.push_back(owners[thread * static_cast<int64_t>(owners.size()) / num_threads]);
  }
  return nodes;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::set<int> cpus;
  std::istringstream stream{std::string(text)};
  for (std::string range; std::getline(stream, range, ',');) {
    std::istringstream bounds(range);
    int first = 0;
    if (!(bounds >> first)) return {};
    int last = first;
    char dash = 0;
    if (bounds >> dash && (dash != '-' || !(bounds >> last))) return {};
    if (first < 0 || last < first || last >= kMaxCpus) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return {cpus.begin(), cpus.end()};
}

int parse_cpu_max(std::string_view text) {
  std::istringstream stream{std::string(text)};
  int64_t quota = 0;
  int64_t period = 0;
  if (!(stream >> quota >> period)) return 0;  // "max ..." is not a number
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
