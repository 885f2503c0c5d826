// Products of plain matrices by code that is not ours: a library or a template that knows neither
// packed weights nor what happens to the sums.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

// All matrices are row-major and begin at multiples of 16 bytes, as do the rows of the sums.
struct GemmShape {
  DType dtype = DType::kBF16;  // of weights and rows; sums are float32
  int num_rows = 0;
  int num_outputs = 0;
  int num_inputs = 0;  // a multiple of 32
  int64_t ld = 0;      // from one row of the sums to the next: at least num_outputs
};

struct GemmParams {
  GemmShape shape;
  const void* weights = nullptr;  // [num_outputs, num_inputs]
  const void* rows = nullptr;     // [num_rows, num_inputs]
  float* sums = nullptr;          // [num_rows, ld]
  bool accumulate = false;        // adds to `sums`
  void* workspace = nullptr;      // Gemm::workspace_bytes(), 256-byte aligned
};

// Computes such products on a device in one or several ways. One thread at a time uses it.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual std::string name() const = 0;
  // How many ways there are for products about as large as this one. The first call may allocate
  // device memory, so it must not come while the stream captures.
  virtual int num_ways(Stream& stream, const GemmShape& shape) = 0;
  virtual std::string name_of(int way) const = 0;
  // `way` is below num_ways() of the shape. May be captured.
  virtual void run(Stream& stream, int way, const GemmParams& params) = 0;
  virtual size_t workspace_bytes() const { return 0; }
};

using GemmList = std::vector<std::unique_ptr<Gemm>>;

}  // namespace specdec::cuda
