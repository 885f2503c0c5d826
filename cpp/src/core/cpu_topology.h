// What the machine lets this process use.
#pragma once

#include <string_view>

namespace specdec {

int num_allowed_cpus();            // logical CPUs in the affinity mask, at least 1
int num_allowed_physical_cores();  // distinct cores behind them, at least 1

// CPUs' worth of time per period the control group grants, rounded down; 0: no limit is set.
int cgroup_cpu_limit();

// The limit in a cgroup v2 cpu.max file ("max 100000", "150000 100000"), as above; 0: none.
int parse_cpu_max(std::string_view text);

}  // namespace specdec
