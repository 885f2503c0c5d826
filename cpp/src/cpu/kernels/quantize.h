// Quantises weights into the codes of linear_int.h, a row of W at a time. Plain aggregates only:
// see kernel_table.h.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear.h"

namespace specdec::cpu {

enum WeightElement : int { kElementF32, kElementBf16, kElementF16 };

struct QuantizeTask {
  const void* x;  // [dim]
  WeightElement element;
  int64_t dim;
  uint8_t* codes;       // out [dim rounded up to 32]; codes past dim mean nothing
  uint16_t* scales;     // out [groups] float16, grouped formats only
  uint16_t* mins;       // out [groups] float16, formats with mins only
  float* output_scale;  // out, kInt8 only
};

// By PackedFormat; null for floats, and for formats with zeros or a table, which take codes alone.
// Scales and mins are rounded to their stored form before codes
// are chosen, so each code is the nearest to its weight. The bits are the same on every instruction
// set.
struct QuantizeKernels {
  void (*row[kNumPackedFormats])(const QuantizeTask& task);
};

}  // namespace specdec::cpu
