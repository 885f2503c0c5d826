// Weights into the layout of quantize_layout.h, from rows of a checkpoint on the device.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/quantize_layout.h"

namespace specdec::cuda {

// Rows of a WeightView, whose comments say what is in them.
struct QuantizeSource {
  const void* values;      // [num_rows, in_features] of the dtype; 4-bit codes in pairs
  DType dtype;             // float32, bfloat16, float16, int8, or uint8 for 4-bit codes
  const uint16_t* scales;  // [num_rows, in_features / group_size], null: floating point
  const uint16_t* mins;    // likewise, or null
  int group_size;
  int num_rows;
};

struct QuantizeParams {
  QuantizeSource source;
  IntLayout layout;
  void* weights;      // packed; zeros so far
  int64_t first_row;  // the output that row 0 of the source is
  int64_t out_features;
  bool is_gated;  // outputs are gates, then ups
};

struct QuantizeKernels {
  // Codes that the layout can hold stay as they are, a row at a time; everything else is quantised
  // by the rules of the CPU's packer, to the same bits.
  void (*pack)(Stream&, const QuantizeParams&);
};

namespace native {
QuantizeKernels quantize_kernels();
}
namespace emulated {
QuantizeKernels quantize_kernels();
}

}  // namespace specdec::cuda
