#include "backend/op_args.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {

bool keeps_fp8(WeightFormat format, const WeightView& part) {
  if (!part.is_fp8()) return false;
  if (part.block_cols >= part.in_features()) {
    return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
  }
  return format == WeightFormat::kFp8Grouped && part.block_cols % kQuantGroup == 0;
}

void dequantize_fp8_row(const WeightView& part, int64_t row, float* out) {
  SPECDEC_CHECK(part.is_fp8());
  const int64_t num_k = part.in_features();
  const int64_t num_blocks = (num_k + part.block_cols - 1) / part.block_cols;
  const float* scales = part.block_scales + row / part.block_rows * num_blocks;
  const uint8_t* codes = static_cast<const uint8_t*>(part.values.data) + row * num_k;
  for (int64_t begin = 0; begin < num_k; begin += part.block_cols, ++scales) {
    const int64_t end = std::min(num_k, begin + part.block_cols);
    for (int64_t k = begin; k < end; ++k) out[k] = *scales * e4m3_to_float(codes[k]);
  }
}

}  // namespace specdec
