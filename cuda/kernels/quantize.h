// Packs rows of a checkpoint, on the device, into the layout of quantize_layout.h.
//
// Plain versions: integers have the bits of the CPU's packer (cpp/src/cpu/kernels/quantize.cc) and
// stored codes the values of reference::values_of (tests/testing/oracle/operations.cc);
// CudaQuantized (tests/cuda/backend/quantized_test.cc) compares. 8-bit floats:
// CudaFp8.FloatsBecomeTheNearest (fp8_test.cc) compares with a search for the nearest code.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/random_weights.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/quantize_layout.h"

namespace specdec::cuda {

// Rows of a WeightView, whose comments describe the values.
struct QuantizeSource {
  const void* values;       // [num_rows, in_features] of the dtype; 4-bit codes in pairs
  DType dtype;              // float32, bfloat16, float16, int8, or uint8 for 4-bit codes
  const uint16_t* scales;   // [num_rows, in_features / group_size], or null
  const uint16_t* mins;     // likewise
  const uint8_t* zeros;     // likewise
  const float* row_scales;  // [num_rows], or null
  bool has_table;
  int8_t table[16];
  int group_size;
  int num_rows;
};

struct QuantizeParams {
  QuantizeSource source;
  CodeLayout layout;
  void* weights;      // packed; zeros so far
  int64_t first_row;  // the output of the source's row 0
  int64_t out_features;
  bool is_gated;  // outputs are gates, then ups
};

// The same for layouts of 8-bit floats.
struct PackFp8Params {
  const void* values;   // [num_rows, in_features]
  DType dtype;          // float32, bfloat16, float16, or e4m3, whose codes are kept
  const float* scales;  // [num_rows], with e4m3
  const uint16_t*
      factors;  // with e4m3 in groups: [num_rows, ceil(in_features / kQuantGroup)] float16
  int num_rows;
  CodeLayout layout;
  void* weights;  // packed; zeros so far
  int64_t first_row;
  int64_t out_features;
  bool is_gated;
};

// Elements of a random tensor, with the bits that core/random_weights.h defines.
struct RandomWeightsParams {
  RandomSource source;
  DType dtype;    // float32, bfloat16 or float16
  int64_t count;  // of elements
  void* values;   // [count]
};

struct QuantizeKernels {
  // Keeps the codes of a row if the layout can hold them; quantises all other rows by the rules of
  // the CPU's packer, to the same bits. A layout with zeros or a table takes only rows that it
  // can keep, and the table from the source.
  void (*pack)(Stream&, const QuantizeParams&);
  // Floating-point weights get one scale per output, which makes the largest magnitude the largest
  // number of the format.
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
