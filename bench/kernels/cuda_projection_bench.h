// Projections of a model on a GPU: few rows as the decoder runs them, beside a library's; or, where
// results may depend on it, many rows on every kernel and library there is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/gpu.h"
#include "common/models.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "cuda/gemm/cublaslt.h"

namespace specdec::bench {

// How many copies of `bytes` exceed an L2 cache.
int sets_for(double bytes);

class ProjectionBench {
 public:
  // `watch` has run since the benchmark began.
  ProjectionBench(Gpu& gpu, const Options& options, const Stopwatch& watch,
                  std::function<void(const Record&)> add);

  void run(const ModelShape& model);
  // The same products of plain matrices by cuBLASLt, where it is: nothing comes before or after.
  void run_peer(const ModelShape& model);

 private:
  struct Projection {
    std::string kernel;
    int64_t out_features;
    int64_t in_features;
    bool gated;
  };
  class Run;
  using Weights = std::vector<std::unique_ptr<PackedLinear>>;

  static std::vector<Projection> projections_of(const ModelShape& model);
  bool wants(const Projection& projection, const std::string& shape) const;
  // The requested numbers of rows, else all, or with --smoke a few.
  std::vector<int> rows_or(std::vector<int> all, std::vector<int> few) const;
  // Enough copies to exceed the L2 cache.
  Weights pack(const Projection& projection);
  double seconds_of(const Weights& weights, Run& run);

  void few_rows(const ModelShape& model, const Projection& projection, const Weights& weights);
  void peer(const ModelShape& model, const Projection& projection);
  void many_rows(const ModelShape& model, const Projection& projection, const Weights& weights);
  std::string shape_name(const ModelShape& model) const;
  // Says once that something is not there to be measured.
  void say_absent(const std::string& what);

  Gpu& gpu_;
  const Options& options_;
  const Stopwatch& watch_;
  std::function<void(const Record&)> add_;
  cuda::CublasltLibrary cublaslt_ = cuda::open_cublaslt();
  std::set<std::string> absent_;
};

}  // namespace specdec::bench
