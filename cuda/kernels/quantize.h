// Weights into the layout of quantize_layout.h, from rows of a checkpoint on the device.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/random_weights.h"
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
  CodeLayout layout;
  void* weights;      // packed; zeros so far
  int64_t first_row;  // the output that row 0 of the source is
  int64_t out_features;
  bool is_gated;  // outputs are gates, then ups
};

// The same for layouts of 8-bit floats.
struct PackFp8Params {
  const void* values;   // [num_rows, in_features]
  DType dtype;          // float32, bfloat16, float16, or e4m3, which stay as they are
  const float* scales;  // of e4m3: [num_rows]
  const uint16_t*
      factors;  // of e4m3 in groups: [num_rows, ceil(in_features / kQuantGroup)] float16
  int num_rows;
  CodeLayout layout;
  void* weights;  // packed; zeros so far
  int64_t first_row;
  int64_t out_features;
  bool is_gated;
};

// Elements of a tensor that is made up, as core/random_weights.h says, to the same bits.
struct RandomWeightsParams {
  RandomSource source;
  DType dtype;    // float32, bfloat16 or float16
  int64_t count;  // of elements
  void* values;   // [count]
};

struct QuantizeKernels {
  // Codes that the layout can hold stay as they are, a row at a time; everything else is quantised
  // by the rules of the CPU's packer, to the same bits.
  void (*pack)(Stream&, const QuantizeParams&);
  // Floating point gets one scale an output: its largest magnitude becomes the largest number there
  // is.
  void (*pack_fp8)(Stream&, const PackFp8Params&);
  void (*random_weights)(Stream&, const RandomWeightsParams&);
};

namespace native {
QuantizeKernels quantize_kernels();
}
namespace emulated {
QuantizeKernels quantize_kernels();
}

}  // namespace specdec::cuda
