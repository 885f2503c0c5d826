// A benchmark's results: one record per case, printed as a row of a table and written to the
// JSON file when it is added, so that a run cut short leaves what it had.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/options.h"

namespace specdec::bench {

using Figures = std::vector<std::pair<std::string, double>>;  // by name
// NaN: anything computed from it is NaN, too, and is left out of figures.
inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// How a kernel is launched.
struct LaunchRecord {
  std::string name;
  int grid[3] = {1, 1, 1};
  int threads = 1;               // of a block
  int64_t shared_bytes = 0;      // dynamic
  int registers = 0;             // of a thread; 0: not known
  int static_shared_bytes = 0;   // known where registers are
  bool starts_early = false;     // before the kernel before it is done
  bool lets_next_early = false;  // start before it has waited itself
  Figures work;                  // work_of() of common/launch_work.h

  bool operator==(const LaunchRecord&) const = default;
};

// The launches of a graph.
struct Launches {
  std::vector<LaunchRecord> kinds;  // each once, in the order of its first launch
  std::vector<int> order;           // of all launches: indices of kinds
  int num_others = 0;               // copies, mostly, each of which keeps the next kernel waiting
};

struct Record {
  std::string kernel;  // what ran: "linear", "fork_join"
  std::string shape;   // on what: "SmolLM2-135M step"
  int rows = 0;        // M: rows of the batch; 0 where that means nothing
  int threads = 1;
  double seconds = 0;  // median of one run
  // The least bytes and operations of a run; 0 where they do not bound it.
  double bytes = 0;
  double flops = 0;
  // Ceilings measured in the same run, in bytes/s and FLOP/s; 0: none.
  double read_rate = 0;
  double peak_rate = 0;
  Figures counters = {};   // anything else
  Launches launches = {};  // on a GPU, where one graph was measured
};

class Report {
 public:
  // `benchmark` names the executable in the JSON.
  Report(std::string benchmark, const Options& options);

  void add(const Record& record);
  // A fact about the machine or the program; written to the JSON file with the next record.
  void note(const std::string& name, const std::string& fact) { facts_[name] = fact; }
  // The exit code of the program: 1 when the JSON file could not be written or the filter left
  // nothing to run.
  int finish() const;

 private:
  bool save() const;

  std::string benchmark_;
  Options options_;
  std::vector<Record> records_;
  std::map<std::string, std::string> facts_;
};

}  // namespace specdec::bench
