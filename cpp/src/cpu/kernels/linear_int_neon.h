// The integer sums of a group on ARM64, one way for each set of instructions. Only for
// kernels/linear_int.cc, which includes it in place of its own dot_group.
//
// A vector of 16 bytes holds four k of four outputs, which is the operand of sdot and usdot; two of
// them zipped hold eight k of two outputs, which is that of usmmla. Integer sums are exact, so a
// number of rows may take whichever is shorter.
#pragma once

#include <arm_neon.h>

namespace specdec::cpu::SPECDEC_ISA {
namespace {

constexpr int kQuartersOfBlock = 4;  // vectors of four outputs

#if defined(__ARM_FEATURE_DOTPROD)

// `lane` has to be a constant once loops are unrolled.
inline int32x4_t dot_lane(int32x4_t acc, uint8x16_t w, int8x16_t x, int lane) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  switch (lane) {
    case 0:
      return vusdotq_laneq_s32(acc, w, x, 0);
    case 1:
      return vusdotq_laneq_s32(acc, w, x, 1);
    case 2:
      return vusdotq_laneq_s32(acc, w, x, 2);
    default:
      return vusdotq_laneq_s32(acc, w, x, 3);
  }
#else
  const int8x16_t codes = vreinterpretq_s8_u8(w);
  switch (lane) {
    case 0:
      return vdotq_laneq_s32(acc, codes, x, 0);
    case 1:
      return vdotq_laneq_s32(acc, codes, x, 1);
    case 2:
      return vdotq_laneq_s32(acc, codes, x, 2);
    default:
      return vdotq_laneq_s32(acc, codes, x, 3);
  }
#endif
}

// Whether eight bits of codes become signed before they are multiplied.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kFlipsSign = false;
#else
constexpr bool kFlipsSign = true;
#endif

template <class Format, int kRows>
inline void dot_rows(const IntSpan<Format>& span, const uint8_t* codes,
                     const RowPointers<uint8_t>& x, const uint8_t* ahead, IntDots<kRows, 1>& dots) {
  constexpr bool kFlips = kFlipsSign && !Format::kIsInt4;
  constexpr int kLinesOfHalf = Format::kGroupLines / 2;
  int32x4_t acc[kRows][kQuartersOfBlock];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const int32_t start = kFlips ? 0 : group_of<Format>(x, r).start;
#pragma GCC unroll 4
    for (int q = 0; q < kQuartersOfBlock; ++q) acc[r][q] = vdupq_n_s32(start);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    int8x16_t rows[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) rows[r] = vld1q_s8(group_of<Format>(x, r).codes + half * 16);
#pragma GCC unroll 4
    for (int line = 0; line < kLinesOfHalf; ++line) {
      const uint8_t* from = codes + (half * kLinesOfHalf + line) * kLineBytes;
      __builtin_prefetch(ahead, 0, 3);
      ahead += span.ahead_step;
#pragma GCC unroll 4
      for (int q = 0; q < kQuartersOfBlock; ++q) {
        uint8x16_t w = vld1q_u8(from + 16 * q);
        if constexpr (Format::kIsInt4) {
          const uint8x16_t low = vandq_u8(w, vdupq_n_u8(15)), high = vshrq_n_u8(w, 4);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            acc[r][q] = dot_lane(acc[r][q], low, rows[r], 2 * line);
            acc[r][q] = dot_lane(acc[r][q], high, rows[r], 2 * line + 1);
          }
        } else {
          if constexpr (kFlips) w = veorq_u8(w, vdupq_n_u8(kInt8Offset));
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) acc[r][q] = dot_lane(acc[r][q], w, rows[r], line);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuartersOfBlock; ++q) dots.of[r][0].q[q] = (IntQuarter)acc[r][q];
  }
}

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)

// Rows in pairs; the last of an odd number is its own partner.
template <class Format, int kRows>
inline void dot_pairs_of_rows(const IntSpan<Format>& span, const uint8_t* codes,
                              const RowPointers<uint8_t>& x, const uint8_t* ahead,
                              IntDots<kRows, 1>& dots) {
  constexpr int kPairs = (kRows + 1) / 2;
  constexpr int kLinesOfEight = Format::kIsInt4 ? 1 : 2;
  int32x4_t acc[kPairs][kQuartersOfBlock][2];
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
    const int first = 2 * p, second = 2 * p + 1 < kRows ? 2 * p + 1 : first;
    const int32x2_t starts = {group_of<Format>(x, first).start, group_of<Format>(x, second).start};
#pragma GCC unroll 4
    for (int q = 0; q < kQuartersOfBlock; ++q) {
      acc[p][q][0] = acc[p][q][1] = vcombine_s32(starts, starts);
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    int8x16_t rows[kPairs][2];  // [pair][eight k]: those of both rows
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const int first = 2 * p, second = 2 * p + 1 < kRows ? 2 * p + 1 : first;
      const int8_t* first_codes = group_of<Format>(x, first).codes;
      const int8_t* second_codes = group_of<Format>(x, second).codes;
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first_codes + half * 16));
      const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second_codes + half * 16));
      rows[p][0] = vreinterpretq_s8_s64(vtrn1q_s64(a, b));
      rows[p][1] = vreinterpretq_s8_s64(vtrn2q_s64(a, b));
    }
#pragma GCC unroll 2
    for (int eight = 0; eight < 2; ++eight) {
      const uint8_t* from = codes + (half * 2 + eight) * kLinesOfEight * kLineBytes;
#pragma GCC unroll 2
      for (int line = 0; line < kLinesOfEight; ++line) {
        __builtin_prefetch(ahead, 0, 3);
        ahead += span.ahead_step;
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQuartersOfBlock; ++q) {
        uint32x4_t low, high;
        if constexpr (Format::kIsInt4) {
          const uint8x16_t w = vld1q_u8(from + 16 * q);
          low = vreinterpretq_u32_u8(vandq_u8(w, vdupq_n_u8(15)));
          high = vreinterpretq_u32_u8(vshrq_n_u8(w, 4));
        } else {
          low = vreinterpretq_u32_u8(vld1q_u8(from + 16 * q));
          high = vreinterpretq_u32_u8(vld1q_u8(from + kLineBytes + 16 * q));
        }
        const uint8x16_t w0 = vreinterpretq_u8_u32(vzip1q_u32(low, high));
        const uint8x16_t w1 = vreinterpretq_u8_u32(vzip2q_u32(low, high));
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          acc[p][q][0] = vusmmlaq_s32(acc[p][q][0], w0, rows[p][eight]);
          acc[p][q][1] = vusmmlaq_s32(acc[p][q][1], w1, rows[p][eight]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuartersOfBlock; ++q) {
      dots.of[2 * p][0].q[q] = (IntQuarter)vuzp1q_s32(acc[p][q][0], acc[p][q][1]);
      if (2 * p + 1 < kRows) {
        dots.of[2 * p + 1][0].q[q] = (IntQuarter)vuzp2q_s32(acc[p][q][0], acc[p][q][1]);
      }
    }
  }
}

#endif

#if !defined(__ARM_FEATURE_DOTPROD)

// Products of two bytes, two of which a 16-bit lane holds: 2 * 128 * 127 < 2^15.
template <class Format, int kRows>
inline void dot_products(const IntSpan<Format>& span, const uint8_t* codes,
                         const RowPointers<uint8_t>& x, const uint8_t* ahead,
                         IntDots<kRows, 1>& dots) {
  constexpr int kLinesOfEight = Format::kIsInt4 ? 1 : 2;
  for (int line = 0; line < Format::kGroupLines; ++line) {
    __builtin_prefetch(ahead + line * span.ahead_step, 0, 3);
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQuartersOfBlock; ++q) {
    int32x4_t low_sums[kRows], high_sums[kRows];  // of two outputs each, two lanes an output
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) low_sums[r] = high_sums[r] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int eight = 0; eight < kIntGroup / 8; ++eight) {
      const uint8_t* from = codes + eight * kLinesOfEight * kLineBytes + 16 * q;
      int8x16_t first, second;
      if constexpr (Format::kIsInt4) {
        const uint8x16_t w = vld1q_u8(from);
        first = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
        second = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
      } else {
        const uint8x16_t flip = vdupq_n_u8(kInt8Offset);
        first = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), flip));
        second = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + kLineBytes), flip));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int8_t* row = group_of<Format>(x, r).codes + 8 * eight;
        const int8x8_t a = vreinterpret_s8_s32(vdup_n_s32(word_at(row)));
        const int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(word_at(row + 4)));
        const int16x8_t low = vmull_s8(vget_low_s8(first), a);
        const int16x8_t high = vmull_s8(vget_high_s8(first), a);
        low_sums[r] = vpadalq_s16(low_sums[r], vmlal_s8(low, vget_low_s8(second), b));
        high_sums[r] = vpadalq_s16(high_sums[r], vmlal_s8(high, vget_high_s8(second), b));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      int32x4_t sum = vpaddq_s32(low_sums[r], high_sums[r]);
      if constexpr (Format::kIsInt4) {
        sum = vaddq_s32(sum, vdupq_n_s32(group_of<Format>(x, r).start));
      }
      dots.of[r][0].q[q] = (IntQuarter)sum;
    }
  }
}

#endif

// The integer sums of one group, and one fetch for each line.
template <class Format, int kRows, int kBlocks>
inline IntDots<kRows, kBlocks> dot_group(const IntSpan<Format>& span, const uint8_t* codes,
                                         const RowPointers<uint8_t>& x, const uint8_t* ahead) {
  static_assert(kBlocks == 1 && kRows <= 4);
  IntDots<kRows, 1> dots;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (kRows > 2) {
    dot_pairs_of_rows<Format, kRows>(span, codes, x, ahead, dots);
  } else {
    dot_rows<Format, kRows>(span, codes, x, ahead, dots);
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  dot_rows<Format, kRows>(span, codes, x, ahead, dots);
#else
  dot_products<Format, kRows>(span, codes, x, ahead, dots);
#endif
  return dots;
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
