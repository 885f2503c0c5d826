// Layout of integer weights and of the rows that they multiply (see RowsTask). Plain aggregates
// only: see kernel_table.h.
//
// Codes are unsigned: a weight is scale * (code - offset) (+ min), or scale * (code - zero), or
// scale * table[code]. Those of 8 bits are stored signed, less their offset, where products want
// them so (LinearKernels::signed_int8). A block of 16 outputs runs over k in records of 64 (two
// groups of 32, or four of 16 with kInt8Grouped16), k padded to whole records:
//   grouped   a record is  [groups][16 outputs] float16 scales, likewise mins or zeros where the
//             format has them, then the codes
//   kInt8     [16] float32 scales first, then records of codes alone
//   codes     8 bits: [k / 4][16 outputs][4];  4 bits: [k / 8][16 outputs][4], in the low halves of
//             the bytes the first four of the eight k, in the high halves the other four
// Everything is a multiple of 64 bytes. 64 bytes of codes are the unsigned operand of vpdpbusd for
// four k, and the codes of a record (4-bit ones once widened) a 16 x 64 byte operand of the AMX
// int8 products, whose exact integer sums are the same; the AMX set still uses vpdpbusd.
//
// For each group of an output and a row, in order of k:
//   sum += float(sum of (code - offset) * x_code) * (scale * x_scale)
//   sum += min * (x_scale * float(sum of x_code))
// The integer sum is exact; a line is one fused multiply-add, and its last factor a product that is
// rounded by itself. kInt8 leaves its scale out of the first line and multiplies it with the sum at
// the end. With zeros the sum in the first line is  float(sum of code * x_code) - zero * float(sum
// of x_code): these integers are below 2^24, so it is exact, too. With a table the value that
// belongs to a code, plus the offset of 8-bit codes, stands in its place.
#pragma once

#include <cstdint>

namespace specdec::cpu {

inline constexpr int kIntGroup = 32;          // k that share a scale, of weights and of rows
inline constexpr int kSmallIntGroup = 16;     // likewise, of kInt8Grouped16
inline constexpr int kIntRecordDepth = 64;    // k
inline constexpr int kIntHeaderBytes = 64;    // scales or mins of two groups, or kInt8's scales
inline constexpr int kInt8CodesBytes = 1024;  // of a record
inline constexpr int kInt4CodesBytes = 512;
inline constexpr int kInt8Offset = 128;
inline constexpr int kInt4Offset = 8;  // 0 with mins or zeros, kInt8Offset with a table
// Of kPackedInt4SmallTable where products of bytes are widened (LinearKernels::widens_int8), with
// tables of magnitudes below it: a group's 16 products of a 16-bit lane then fit it.
inline constexpr int kSmallTableOffset = 16;

// One group of a row. Everything that a product needs of the group is adjacent.
template <class Code, int kGroup>
struct IntRowGroup {
  Code codes[kGroup];
  float scale;
  // -offset * (sum of the codes), with the weights' offset. With kSmallTableOffset two halves of 16
  // bits, modulo 2^16: for the first two and the last two codes of every four.
  int32_t start;
  // The factor of the weights' mins, scale * (sum of the codes), or of their zeros, -(sum of the
  // codes).
  float min;
};

}  // namespace specdec::cpu
