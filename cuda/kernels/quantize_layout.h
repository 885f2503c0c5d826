// Layout on the device of weights that are codes, integers or 8-bit floats: [tile of 16
// outputs][block of 32 inputs], like weights in the act dtype (kernels/tiles.cuh). A block is
//   codes   16 bytes per lane (8-bit codes) or 8 (4-bit). Lane 4g + t has the codes of outputs
//           g + 8r (r = 0, 1) and of 8 inputs: its input i is the block's input 4t + i for i < 4
//           and 12 + 4t + i for i >= 4. The code of an output and input is
//             8 bits: byte r + 2 (i % 2) of the lane's word i / 2, two's complement or e4m3
//             4 bits: half i / 2 % 2 (0: low) of byte r + 2 (i % 2) of the lane's word i / 4; with
//                     8 added in formats without mins
//           A shift and a mask then give a pair of codes for the A operand of mma.m16n8k16
//   scales  in grouped formats: [g][2] float16, of outputs g and g + 8; with mins [g][4], the two
//           mins after the two scales. With 8-bit floats they are factors of the output's scale
//
// kInt8, kFp8 and kFp8Grouped have float32 scales of the outputs, [tiles][16], after all blocks.
#pragma once

#include <cstdint>

#include "backend/op_args.h"

namespace specdec::cuda {

inline constexpr int kCodeTileRows = 16;

struct CodeLayout {
  bool is_int4;
  bool is_fp8;
  bool is_grouped;
  bool has_mins;
  bool has_output_scales;
  int in_features;
  int num_k_blocks;
  int codes_bytes;  // of a block
  int block_bytes;
  int64_t num_tiles;
  int64_t scales_offset;  // of the outputs' scales: the bytes of all blocks
  int64_t size_bytes;
};

inline CodeLayout make_code_layout(WeightFormat format, int64_t num_tiles, int64_t in_features) {
  CodeLayout layout{};
  layout.is_int4 = format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin;
  layout.is_fp8 = format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
  layout.is_grouped = format != WeightFormat::kInt8 && format != WeightFormat::kFp8;
  layout.has_output_scales = !layout.is_grouped || layout.is_fp8;
  layout.has_mins =
      format == WeightFormat::kInt8GroupedMin || format == WeightFormat::kInt4GroupedMin;
  layout.in_features = static_cast<int>(in_features);
  layout.num_k_blocks = static_cast<int>((in_features + kQuantGroup - 1) / kQuantGroup);
  layout.codes_bytes = kCodeTileRows * kQuantGroup / (layout.is_int4 ? 2 : 1);
  const int floats = !layout.is_grouped ? 0 : layout.has_mins ? 2 : 1;  // float16 per output
  layout.block_bytes = layout.codes_bytes + kCodeTileRows * floats * 2;
  layout.num_tiles = num_tiles;
  layout.scales_offset = num_tiles * layout.num_k_blocks * layout.block_bytes;
  layout.size_bytes = layout.scales_offset;
  if (layout.has_output_scales)
    layout.size_bytes += num_tiles * kCodeTileRows * int64_t{sizeof(float)};
  return layout;
}

}  // namespace specdec::cuda
