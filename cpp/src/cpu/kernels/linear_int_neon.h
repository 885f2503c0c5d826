// A group's part of a tile on ARM64, one way for each set of instructions. Only for
// kernels/linear_int.cc, which includes it in place of its own dot_group and add_group.
//
// A vector of 16 bytes holds four k of four outputs (a quarter of a block), which is the operand of
// sdot and usdot; two of them zipped hold eight k of two outputs, which is that of usmmla. Integer
// sums are exact, so a number of rows may take whichever is shorter. The rows of a group stay in
// registers while its quarters are summed one after the other, and a quarter's integers become
// floats at once: so no integer sum goes through memory. Nothing is prefetched, since the weights
// are a stream, which these processors follow by themselves.
#pragma once

#include <arm_neon.h>

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// The float sums of a tile's rows in the step under way.
template <int kRows>
struct alignas(64) StepSums {
  float of[kRows][kLanes];
};

// body(0) to body(kCount - 1), each with a constant. The compiler unrolls loops too late to keep
// the arrays that they index in registers.
template <class Body, int... kIndex>
[[gnu::always_inline]] inline void each_of(std::integer_sequence<int, kIndex...>, Body&& body) {
  (body(std::integral_constant<int, kIndex>()), ...);
}
template <int kCount, class Body>
[[gnu::always_inline]] inline void each(Body&& body) {
  each_of(std::make_integer_sequence<int, kCount>(), body);
}
#define SPECDEC_INLINE __attribute__((always_inline))

// Quarters that are summed together: for few rows all, whose weights are then loaded in pairs.
template <int kRows>
constexpr int kTogether = kRows <= 2   ? 4
                          : kRows <= 4 ? 2
                                       : 1;

// Their integer sums.
template <int kRows>
struct QuarterDots {
  int32x4_t of[kTogether<kRows>][kRows];
};

#if defined(__ARM_FEATURE_DOTPROD)

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

// Each row by itself.
template <class Format, int kRows>
class DotsOfRows {
 public:
  [[gnu::always_inline]] explicit DotsOfRows(const RowPointers<uint8_t>& x) {
    each<kRows>([&](auto r) SPECDEC_INLINE {
      rows_[r][0] = vld1q_s8(group_of<Format>(x, r).codes);
      rows_[r][1] = vld1q_s8(group_of<Format>(x, r).codes + 16);
      starts_[r] = kFlips ? 0 : group_of<Format>(x, r).start;
    });
  }
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes) const {
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
      each<kRows>([&](auto r) SPECDEC_INLINE {
        dots.of[q][r] = vdupq_n_s32(Format::kOffset != 0 ? starts_[r] : 0);
      });
    });
    each<Format::kGroupLines>([&](auto line) SPECDEC_INLINE {
      each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
        const uint8x16_t w = vld1q_u8(codes + line * kLineBytes + 16 * q);
        if constexpr (Format::kIsInt4) {
          add(dots.of[q], vandq_u8(w, vdupq_n_u8(15)), 2 * line);
          add(dots.of[q], vshrq_n_u8(w, 4), 2 * line + 1);
        } else {
          add(dots.of[q], kFlips ? veorq_u8(w, vdupq_n_u8(kInt8Offset)) : w, line);
        }
      });
    });
    return dots;
  }

 private:
  // Without a product of unsigned and signed bytes, eight bits of codes become signed first.
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr bool kFlips = false;
#else
  static constexpr bool kFlips = !Format::kIsInt4;
#endif

  // Adds the products of a quad of k.
  [[gnu::always_inline]] void add(int32x4_t (&dots)[kRows], uint8x16_t w, int quad) const {
    each<kRows>([&](auto r) SPECDEC_INLINE {
      dots[r] = dot_lane(dots[r], w, rows_[r][quad / 4], quad % 4);
    });
  }

  int8x16_t rows_[kRows][2];
  int32_t starts_[kRows];
};

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)

// Rows in pairs; the last of an odd number is its own partner.
template <class Format, int kRows>
class DotsOfPairs {
 public:
  [[gnu::always_inline]] explicit DotsOfPairs(const RowPointers<uint8_t>& x) {
    each<kPairs>([&](auto p) SPECDEC_INLINE {
      const int8_t* first = group_of<Format>(x, 2 * p).codes;
      const int8_t* second = group_of<Format>(x, second_of(p)).codes;
      each<2>([&](auto half) SPECDEC_INLINE {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + half * 16));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second + half * 16));
        pairs_[p][2 * half] = vreinterpretq_s8_s64(vtrn1q_s64(a, b));
        pairs_[p][2 * half + 1] = vreinterpretq_s8_s64(vtrn2q_s64(a, b));
      });
      if constexpr (Format::kOffset != 0) {
        starts_[p] = vdup_n_s32(group_of<Format>(x, 2 * p).start);
        starts_[p] = vset_lane_s32(group_of<Format>(x, second_of(p)).start, starts_[p], 1);
      }
    });
  }
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes) const {
    int32x4_t acc[kTogether<kRows>][kPairs][2];  // [quarter][pair][two outputs]: of both rows
    each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
      each<kPairs>([&](auto p) SPECDEC_INLINE {
        acc[q][p][0] = acc[q][p][1] =
            Format::kOffset != 0 ? vcombine_s32(starts_[p], starts_[p]) : vdupq_n_s32(0);
      });
    });
    each<kIntGroup / 8>([&](auto eight) SPECDEC_INLINE {
      each<kTogether<kRows>>([&](auto q)
                                 SPECDEC_INLINE { add_eight(acc[q], codes + 16 * q, eight); });
    });
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
      each<kPairs>([&](auto p) SPECDEC_INLINE {
        dots.of[q][2 * p] = vuzp1q_s32(acc[q][p][0], acc[q][p][1]);
        if (2 * p + 1 < kRows) dots.of[q][2 * p + 1] = vuzp2q_s32(acc[q][p][0], acc[q][p][1]);
      });
    });
    return dots;
  }

 private:
  static constexpr int kPairs = (kRows + 1) / 2;
  // Adds the products of eight k.
  [[gnu::always_inline]] void add_eight(int32x4_t (&acc)[kPairs][2], const uint8_t* codes,
                                        int eight) const {
    uint32x4_t low, high;
    if constexpr (Format::kIsInt4) {
      const uint8x16_t w = vld1q_u8(codes + eight * kLineBytes);
      low = vreinterpretq_u32_u8(vandq_u8(w, vdupq_n_u8(15)));
      high = vreinterpretq_u32_u8(vshrq_n_u8(w, 4));
    } else {
      low = vreinterpretq_u32_u8(vld1q_u8(codes + 2 * eight * kLineBytes));
      high = vreinterpretq_u32_u8(vld1q_u8(codes + (2 * eight + 1) * kLineBytes));
    }
    const uint8x16_t w0 = vreinterpretq_u8_u32(vzip1q_u32(low, high));
    const uint8x16_t w1 = vreinterpretq_u8_u32(vzip2q_u32(low, high));
    each<kPairs>([&](auto p) SPECDEC_INLINE {
      acc[p][0] = vusmmlaq_s32(acc[p][0], w0, pairs_[p][eight]);
      acc[p][1] = vusmmlaq_s32(acc[p][1], w1, pairs_[p][eight]);
    });
  }
  static constexpr int second_of(int pair) {
    return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair;
  }

  int8x16_t pairs_[kPairs][4];  // [pair][eight k]: those of both rows
  int32x2_t starts_[kPairs];
};

#endif

#if !defined(__ARM_FEATURE_DOTPROD)

// Products of two bytes, two of which a 16-bit lane holds: 2 * 128 * 127 < 2^15.
template <class Format, int kRows>
class DotsByProducts {
 public:
  [[gnu::always_inline]] explicit DotsByProducts(const RowPointers<uint8_t>& x) : x_(x) {}
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes) const {
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE { sum_quarter(codes + 16 * q, dots.of[q]); });
    return dots;
  }

 private:
  [[gnu::always_inline]] void sum_quarter(const uint8_t* codes, int32x4_t (&dots)[kRows]) const {
    int32x4_t low_sums[kRows], high_sums[kRows];  // of two outputs each, two lanes an output
    each<kRows>([&](auto r) SPECDEC_INLINE { low_sums[r] = high_sums[r] = vdupq_n_s32(0); });
    each<kIntGroup / 8>([&](auto eight) SPECDEC_INLINE {
      const Codes w = codes_of(codes, eight);
      each<kRows>([&](auto r) SPECDEC_INLINE {
        const int8_t* row = group_of<Format>(x_, r).codes + 8 * eight;
        const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(word_at(row)));
        const int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(word_at(row + 4)));
        const int16x8_t low = vmull_s8(vget_low_s8(w.first), vget_low_s8(a));
        const int16x8_t high = vmull_high_s8(w.first, a);
        low_sums[r] =
            vpadalq_s16(low_sums[r], vmlal_s8(low, vget_low_s8(w.second), vget_low_s8(b)));
        high_sums[r] = vpadalq_s16(high_sums[r], vmlal_high_s8(high, w.second, b));
      });
    });
    each<kRows>([&](auto r) SPECDEC_INLINE {
      dots[r] = vpaddq_s32(low_sums[r], high_sums[r]);
      if constexpr (Format::kIsInt4 && Format::kOffset != 0) {
        dots[r] = vaddq_s32(dots[r], vdupq_n_s32(group_of<Format>(x_, r).start));
      }
    });
  }
  struct Codes {
    int8x16_t first, second;  // four k each of four outputs
  };
  [[gnu::always_inline]] static Codes codes_of(const uint8_t* codes, int eight) {
    if constexpr (Format::kIsInt4) {
      const uint8x16_t w = vld1q_u8(codes + eight * kLineBytes);
      return {vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))),
              vreinterpretq_s8_u8(vshrq_n_u8(w, 4))};
    } else {
      const uint8_t* from = codes + 2 * eight * kLineBytes;
      const uint8x16_t flip = vdupq_n_u8(kInt8Offset);
      return {vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), flip)),
              vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + kLineBytes), flip))};
    }
  }

  const RowPointers<uint8_t>& x_;
};

template <class Format, int kRows>
using GroupDots = DotsByProducts<Format, kRows>;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
template <class Format, int kRows>
using GroupDots =
    std::conditional_t<(kRows > 2), DotsOfPairs<Format, kRows>, DotsOfRows<Format, kRows>>;
#else
template <class Format, int kRows>
using GroupDots = DotsOfRows<Format, kRows>;
#endif

// sums += the group's integer sums, scaled. `header` is where the group's scales are.
template <class Format, int kRows>
[[gnu::always_inline]] inline void add_group(const uint8_t* codes, const uint8_t* header,
                                             const RowPointers<uint8_t>& x, StepSums<kRows>& sums) {
  const GroupDots<Format, kRows> rows(x);
  each<kQuarters / kTogether<kRows>>([&](auto part) SPECDEC_INLINE {
    constexpr int first = part * kTogether<kRows>;
    const QuarterDots<kRows> dots = rows.quarters(codes + 16 * first);
    each<kTogether<kRows>>([&](auto i) SPECDEC_INLINE {
      const int q = first + i;
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(header) + 4 * q;
      float32x4_t scales, mins;
      if constexpr (Format::kIsGrouped) scales = load_half_quarter(halves);
      if constexpr (Format::kHasMins) mins = load_half_quarter(halves + kIntHeaderBytes / 2);
      each<kRows>([&](auto r) SPECDEC_INLINE {
        const auto& group = group_of<Format>(x, r);
        const float32x4_t dot = vcvtq_f32_s32(dots.of[i][r]);
        float32x4_t product;
        if constexpr (Format::kIsGrouped) {
          product = vmulq_f32(dot, vmulq_n_f32(scales, group.scale));
        } else {
          product = vmulq_n_f32(dot, group.scale);
        }
        float* place = sums.of[r] + 4 * q;
        float32x4_t sum = vaddq_f32(vld1q_f32(place), product);
        if constexpr (Format::kHasMins) sum = vaddq_f32(sum, vmulq_n_f32(mins, group.min));
        vst1q_f32(place, sum);
      });
    });
    // The registers hold no more than these quarters at once.
    if constexpr (kRows > 2) asm("" : "+r"(codes), "+r"(header));
  });
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
