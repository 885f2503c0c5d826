// The command line all benchmarks share.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "core/dtype.h"

namespace specdec::bench {

struct Options {
  std::string device;  // one of those the benchmark runs on; the default: the first
  std::string cpu_isa = "auto";
  int num_threads = 1;         // the default: what the library would take
  DType dtype = DType::kBF16;  // of activations
  WeightFormat format = WeightFormat::kAct;
  bool deterministic = true;  // false: as EngineConfig has it
  // On a GPU: words of cuda::parse_launch_settings in place of the environment's.
  std::optional<std::string> launch;
  std::vector<int> rows;        // of products on a GPU; empty: what the benchmark has
  std::string json;             // file to write the records to; empty: none
  std::string filter;           // only cases whose name contains it
  double budget_seconds = 1e9;  // cases that would begin later are left out
  // Nothing is measured: records have the launches that a GPU would get, for models of any size.
  bool list_launches = false;
  bool smoke = false;  // a few seconds: proves that it runs, measures nothing worth keeping

  // How many times a measurement is repeated for its median.
  int samples(int full) const { return smoke ? 2 : full; }
  double batch_seconds() const { return smoke ? 1e-4 : 5e-3; }
  bool selects(const std::string& name) const { return name.find(filter) != std::string::npos; }
};

// Of --load_format: whether weights are made up ("dummy"), or the checkpoint's ("auto"). Exits with
// a message about anything else.
bool is_dummy(const std::string& load_format);

// Exits with a message about the arguments when they are wrong or ask for help.
Options parse_options(int argc, char** argv, std::initializer_list<const char*> devices = {"cpu"});

}  // namespace specdec::bench
