// The command line all benchmarks share.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "specdec/config.h"
#include "specdec/quantization.h"

namespace specdec::bench {

struct Options {
  std::string device;  // one of those the benchmark runs on; the default: the first
  std::string cpu_isa = "auto";
  int num_threads = 1;         // the default: what the library would take
  DType dtype = DType::kBF16;  // of activations
  WeightFormat format = WeightFormat::kAct;
  bool nondeterministic = false;  // as EngineConfig has it
  // On a GPU: words of cuda::parse_launch_settings in place of the environment's.
  std::optional<std::string> launch;
  std::vector<int> rows;         // of products on a GPU; empty: what the benchmark has
  std::string json;              // file to write the records to; empty: none
  std::string filter;            // only cases whose name contains it
  int budget_seconds = 1 << 30;  // cases that would begin later are left out
  // Measure nothing, but record the launches that a GPU would get, for models of any size.
  bool list_launches = false;
  bool smoke = false;  // a few seconds: proves that it runs, measures nothing worth keeping

  // How many times a measurement is repeated for its median.
  int samples(int full) const { return smoke ? 2 : full; }
  double batch_seconds() const { return smoke ? 1e-4 : 5e-3; }
  bool selects(const std::string& name) const { return name.find(filter) != std::string::npos; }
};

// An argument of one benchmark in addition to the common ones, and where its value goes. A bool
// takes no value.
struct Argument {
  using Destination =
      std::variant<bool*, int*, std::vector<int>*, std::string*, std::optional<std::string>*,
                   DType*, LoadFormat*, WeightFormat*, Quantization*>;
  const char* name;  // "--model"
  Destination destination;
  int least = 1;  // of numbers
  bool is_needed = false;
};

// Exits with a message about the arguments when they are wrong or ask for help.
Options parse_options(int argc, char** argv, std::initializer_list<const char*> devices = {"cpu"},
                      const std::vector<Argument>& own = {});

std::unique_ptr<Backend> make_cpu_backend(const Options& options);

}  // namespace specdec::bench
