// Which kernel or library a product of many rows runs on where its result may depend on that
// (deterministic=false): the fastest, as timed at the first product of its kind, or one by shape.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/backend/plain_product.h"
#include "cuda/backend/workspace.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_tuner.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

// Seconds of work that is queued on the stream; `way` names it.
using ProductTimer = std::function<double(Device& device, Stream& stream, const std::string& way,
                                          const std::function<void()>& run)>;
// The least of a few runs between events, after one to warm up. Waits for the stream.
double event_seconds(Device& device, Stream& stream, const std::string& way,
                     const std::function<void()>& run);

class ProductChooser {
 public:
  // Runs a product by our own kernels as its plan says.
  using Launch = std::function<void(const ProductParams& params)>;

  ProductChooser(Device& device, Stream& stream, const ProjectionKernels& kernels, GemmList gemms);

  // Without one, and in captured work that was not timed before, shapes alone decide. What was
  // chosen is forgotten.
  void set_timer(ProductTimer timer);

  // Whether there is a choice.
  static bool serves(const ProductParams& params);
  // `params` has records, its plan is that of many_rows, and heads have their workspaces. Inputs
  // stay as they are, whatever is tried; outputs are written as if once.
  void run(const ProductParams& params, const Launch& launch);

 private:
  struct Way {
    std::string name;
    int wide_rows = 0;     // of wide_product; 0: many_rows
    Gemm* gemm = nullptr;  // instead of either
    int gemm_way = 0;
  };

  // Kernels of our own.
  std::vector<Way> own_ways() const;
  std::vector<Way> ways_for(const ProductParams& params);
  bool has_wide_product() const;
  // Our own kernel for the shape.
  Way default_way(const ProductParams& params) const;
  void run_way(const Way& way, const ProductParams& params, const Launch& launch);
  // Takes the memory of all that may be tried.
  void rehearse(const ProductParams& params, const Launch& launch);
  double seconds_of(const Way& way, ProductParams params, const Launch& launch);
  float* timed_out_for(const ProductParams& params);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  GemmList gemms_;
  PlainProduct plain_product_;
  ProductTimer timer_;
  GemmTuner tuner_;
  std::map<GemmKey, Way> chosen_;
  Workspace timed_out_;
};

}  // namespace specdec::cuda
