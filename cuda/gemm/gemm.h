// GEMMs of plain matrices by other people's code: a library or template that knows neither packed
// weights nor our epilogues.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

// All matrices are row-major. They, and the rows of the sums, begin at multiples of 16 bytes.
struct GemmShape {
  DType dtype = DType::kBF16;  // of weights and rows; sums are float32
  int num_rows = 0;
  int num_outputs = 0;
  int num_inputs = 0;  // a multiple of 32
  int64_t ld = 0;      // elements from one row of sums to the next
};

struct GemmParams {
  GemmShape shape;
  const void* weights = nullptr;  // [num_outputs, num_inputs]
  const void* rows = nullptr;     // [num_rows, num_inputs]
  float* sums = nullptr;          // [num_rows, ld]
  bool accumulate = false;        // adds to `sums`
  void* workspace = nullptr;      // Gemm::workspace_bytes(), 256-byte aligned
};

// Computes GEMMs on a device, in one or several ways. One thread at a time may use it.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual std::string name() const = 0;
  // The number of ways for GEMMs of about this size. The first call may allocate device memory, so
  // it must not come in a capture.
  virtual int num_ways(Stream& stream, const GemmShape& shape) = 0;
  virtual std::string name_of(int way) const = 0;
  // `way` is below num_ways() for the shape. May be captured.
  virtual void run(Stream& stream, int way, const GemmParams& params) = 0;
  virtual size_t workspace_bytes() const { return 0; }
};

using GemmList = std::vector<std::unique_ptr<Gemm>>;

}  // namespace specdec::cuda
