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

namespace {

void dequantize_fp8_row(const WeightView& part, int64_t row, float* out) {
  const int64_t num_k = part.in_features();
  const int64_t num_blocks = (num_k + part.block_cols - 1) / part.block_cols;
  const float* scales = part.block_scales + row / part.block_rows * num_blocks;
  const uint8_t* codes = static_cast<const uint8_t*>(part.values.data) + row * num_k;
  for (int64_t begin = 0; begin < num_k; begin += part.block_cols, ++scales) {
    const int64_t end = std::min(num_k, begin + part.block_cols);
    for (int64_t k = begin; k < end; ++k) out[k] = *scales * e4m3_to_float(codes[k]);
  }
}

}  // namespace

void check_router(const Router& router, int num_experts) {
  SPECDEC_CHECK_GT(router.num_groups, 0);
  SPECDEC_CHECK_LE(router.num_groups, kMaxExpertGroups);
  SPECDEC_CHECK_EQ(num_experts % router.num_groups, 0);
  SPECDEC_CHECK_GT(router.top_groups, 0);
  SPECDEC_CHECK_LE(router.top_groups, router.num_groups);
  SPECDEC_CHECK_GT(router.top_k, 0);
  SPECDEC_CHECK_LE(router.top_k, num_experts / router.num_groups * router.top_groups);
}

void dequantize_row(const WeightView& part, int64_t row, float* out) {
  SPECDEC_CHECK(part.is_quantized());
  if (part.is_fp8()) return dequantize_fp8_row(part, row, out);
  const int64_t num_k = part.in_features();
  const int64_t group_size = part.has_row_scales() ? num_k : part.group_size;
  const bool is_int8 = part.bits() == 8;
  const uint8_t* codes = static_cast<const uint8_t*>(part.values.data) + row * part.values.shape[1];
  for (int64_t begin = 0; begin < num_k; begin += group_size) {
    const int64_t group = (row * num_k + begin) / group_size;
    const float scale =
        part.has_row_scales() ? part.block_scales[row] : half_to_float(part.scales[group]);
    const float min = part.mins != nullptr ? half_to_float(part.mins[group]) : 0.0f;
    const int zero = part.mins != nullptr ? 0 : part.zeros != nullptr ? part.zeros[group] : 8;
    for (int64_t k = begin; k < begin + group_size; ++k) {
      int level;
      if (is_int8) {
        level = static_cast<int8_t>(codes[k]);
      } else {
        const int code = codes[k / 2] >> (k % 2 * 4) & 15;
        level = part.table != nullptr ? part.table[code] : code - zero;
      }
      out[part.input_order != nullptr ? part.input_order[k] : k] =
          scale * static_cast<float>(level) + min;
    }
  }
}

}  // namespace specdec
