// Layout on the device of weights that are codes, integers or 8-bit floats: [tile of 16
// outputs][block of 32 inputs], like weights in the act dtype (kernels/tiles.cuh). A block is
//   codes   16 bytes per lane (8-bit codes) or 8 (4-bit). Lane 4g + t has the codes of outputs
//           g + 8r (r = 0, 1) and of 8 inputs: its input i is the block's input 4t + i for i < 4
//           and 12 + 4t + i for i >= 4. The code of an output and input is
//             8 bits: byte r + 2 (i % 2) of the lane's word i / 2, two's complement or e4m3
//             4 bits: half i / 2 % 2 (0: low) of byte r + 2 (i % 2) of the lane's word i / 4, as
//                     WeightView has it
//           A shift and a mask then give a pair of codes for the A operand of mma.m16n8k16
//   scales  in grouped formats: [g][2] float16, of outputs g and g + 8; with a GroupExtra [g][4],
//           those two numbers after the two scales. With 8-bit floats they are factors of the
//           output's scale
//
// kInt8, kFp8 and kFp8Grouped have float32 scales of the outputs, [tiles][16], after all blocks;
// kInt4Table has its table there.
#pragma once

#include <cstdint>

#include "backend/op_args.h"

namespace specdec::cuda {

inline constexpr int kCodeTileRows = 16;
inline constexpr int kCodeTableBytes = 16;

// What a block has of an output beside its scale, in 16 bits.
enum class GroupExtra : uint8_t {
  kNone,
  kMin,          // float16
  kZero,         // an integer
  kSecondScale,  // float16, of the block's inputs 16 .. 31; the scale is that of 0 .. 15
};

struct CodeLayout {
  bool is_int4;
  bool is_fp8;
  bool is_grouped;
  GroupExtra extra;
  bool has_table;
  bool has_output_scales;
  int in_features;
  int num_k_blocks;
  int codes_bytes;  // of a block
  int block_bytes;
  int64_t num_tiles;
  int64_t scales_offset;  // of the outputs' scales, or of the table: the bytes of all blocks
  int64_t size_bytes;
};

inline GroupExtra extra_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8GroupedMin:
    case WeightFormat::kInt4GroupedMin:
      return GroupExtra::kMin;
    case WeightFormat::kInt4GroupedZero:
      return GroupExtra::kZero;
    case WeightFormat::kInt8Grouped16:
      return GroupExtra::kSecondScale;
    default:
      return GroupExtra::kNone;
  }
}

inline CodeLayout make_code_layout(WeightFormat format, int64_t num_tiles, int64_t in_features) {
  CodeLayout layout{};
  layout.has_table = format == WeightFormat::kInt4Table;
  layout.is_int4 = layout.has_table || format == WeightFormat::kInt4Grouped ||
                   format == WeightFormat::kInt4GroupedMin ||
                   format == WeightFormat::kInt4GroupedZero;
  layout.is_fp8 = format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
  layout.is_grouped = format != WeightFormat::kInt8 && format != WeightFormat::kFp8;
  layout.has_output_scales = !layout.is_grouped || layout.is_fp8;
  layout.extra = extra_of(format);
  layout.in_features = static_cast<int>(in_features);
  layout.num_k_blocks = static_cast<int>((in_features + kQuantGroup - 1) / kQuantGroup);
  layout.codes_bytes = kCodeTileRows * kQuantGroup / (layout.is_int4 ? 2 : 1);
  const int numbers = !layout.is_grouped ? 0 : layout.extra != GroupExtra::kNone ? 2 : 1;
  layout.block_bytes = layout.codes_bytes + kCodeTileRows * numbers * 2;
  layout.num_tiles = num_tiles;
  layout.scales_offset = num_tiles * layout.num_k_blocks * layout.block_bytes;
  layout.size_bytes = layout.scales_offset;
  if (layout.has_output_scales)
    layout.size_bytes += num_tiles * kCodeTileRows * int64_t{sizeof(float)};
  if (layout.has_table) layout.size_bytes += kCodeTableBytes;
  return layout;
}

}  // namespace specdec::cuda
