// A group's part of a tile on ARM64, one way for each set of instructions. Only for
// kernels/linear_int.cc, which includes it in place of its own dot_group and add_group.
//
// A vector of 16 bytes holds four k of four outputs (a quarter of a block), the operand of sdot;
// two such vectors zipped hold eight k of two outputs, the operand of smmla. Integer sums are
// exact, so each number of rows uses whichever takes fewer instructions. The rows of a group stay
// in registers while its quarters are summed one after the other, and a quarter's integers become
// floats at once, so no integer sum goes through memory. With more than two rows, everything else
// goes through memory for lack of registers. Nothing is prefetched: the weights are one stream,
// which these processors prefetch by themselves.
//
// A vector of sums is one row's four outputs, or, where smmla sums pairs of
// rows, two outputs of both rows: o0r0 o0r1 o1r0 o1r1, then likewise o2 and o3.
#pragma once

#include <arm_neon.h>

#include "cpu/kernels/row_factors_neon.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Quarters that are summed together. Few rows take all four, so that weights are loaded in pairs.
template <int kRows>
constexpr int kTogether = kAreFew<kRows> ? kQuarters
                          : kRows <= 4   ? 2
                                         : 1;

// The float sums of a tile's rows in the current slice.
template <int kRows>
struct SliceSums {
  float32x4_t of[kQuarters][kDotVectors<kRows>];
};

// Integer sums of the quarters that are summed together.
template <int kRows>
struct QuarterDots {
  int32x4_t of[kTogether<kRows>][kDotVectors<kRows>];
};

// --- The integer sums of quarters ---

// What the 4-bit codes of a vector stand for: four k in the low halves of its bytes, the next four
// in the high halves.
template <class Format>
class HalfBytes {
 public:
  [[gnu::always_inline]] explicit HalfBytes(const int8_t* table) {
    if constexpr (Format::kHasTable) table_ = vld1q_s8(table);
  }
  [[gnu::always_inline]] int8x16_t low(int8x16_t w) const {
    return values_of(vandq_s8(w, vdupq_n_s8(15)));
  }
  [[gnu::always_inline]] int8x16_t high(int8x16_t w) const {
    return values_of(vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w), 4)));
  }

 private:
  [[gnu::always_inline]] int8x16_t values_of(int8x16_t codes) const {
    if constexpr (!Format::kHasTable) return codes;
    return vqtbl1q_s8(table_, vreinterpretq_u8_s8(codes));
  }

  int8x16_t table_{};
};

template <class Format>
constexpr int kGroupVectors = Format::kGroup / 16;  // of a row's codes

// A group of a row's codes.
template <class Format, class Vector>
[[gnu::always_inline]] inline void load_codes(const RowPointers<uint8_t>& x, int row,
                                              Vector (&codes)[kGroupVectors<Format>]) {
  const auto& from = group_of<Format>(x, row).codes;
  if constexpr (kGroupVectors<Format> == 2) {
    load_two<0>(from, codes[0], codes[1]);
  } else {
    __builtin_memcpy(&codes[0], from, sizeof(Vector));
  }
}

#if defined(__ARM_FEATURE_DOTPROD)

inline int32x4_t dot_lane(int32x4_t acc, int8x16_t w, int8x16_t x, int lane) {
  switch (lane) {
    case 0:
      return vdotq_laneq_s32(acc, w, x, 0);
    case 1:
      return vdotq_laneq_s32(acc, w, x, 1);
    case 2:
      return vdotq_laneq_s32(acc, w, x, 2);
    default:
      return vdotq_laneq_s32(acc, w, x, 3);
  }
}

// Adjacent vectors of weights.
template <int kOffset, int kCount>
[[gnu::always_inline]] inline void load_quarters(const uint8_t* codes, int8x16_t (&w)[kCount]) {
  if constexpr (kCount == 1) {
    w[0] = vld1q_s8(reinterpret_cast<const int8_t*>(codes) + kOffset);
  } else {
    each<kCount / 2>(
        [&](auto i) SPECDEC_INLINE { load_two<kOffset + 32 * i>(codes, w[2 * i], w[2 * i + 1]); });
  }
}

// One row at a time.
template <class Format, int kRows>
class DotsOfRows {
 public:
  [[gnu::always_inline]] explicit DotsOfRows(const RowPointers<uint8_t>& x) {
    each<kRows>([&](auto r) SPECDEC_INLINE { load_codes<Format>(x, r, rows_[r]); });
  }
  template <class OfRows>
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes,
                                                     const HalfBytes<Format>& half_bytes,
                                                     const OfRows& factors) const {
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q)
                               SPECDEC_INLINE { begin_dots<Format, kRows>(factors, dots.of[q]); });
    each<Format::kGroupLines>([&](auto line) SPECDEC_INLINE {
      int8x16_t w[kTogether<kRows>];
      load_quarters<line * kLineBytes>(codes, w);
      each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
        if constexpr (Format::kIsInt4) {
          add(dots.of[q], half_bytes.low(w[q]), 2 * line);
          add(dots.of[q], half_bytes.high(w[q]), 2 * line + 1);
        } else {
          add(dots.of[q], w[q], line);
        }
      });
    });
    return dots;
  }

 private:
  // Adds the products of a quad of k.
  [[gnu::always_inline]] void add(int32x4_t (&dots)[kRows], int8x16_t w, int quad) const {
    each<kRows>([&](auto r) SPECDEC_INLINE {
      dots[r] = dot_lane(dots[r], w, rows_[r][quad / 4], quad % 4);
    });
  }

  int8x16_t rows_[kRows][kGroupVectors<Format>];
};

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)

// Rows in pairs, by smmla.
template <class Format, int kRows>
class DotsOfPairs {
 public:
  [[gnu::always_inline]] explicit DotsOfPairs(const RowPointers<uint8_t>& x) {
    each<kPairs<kRows>>([&](auto p) SPECDEC_INLINE {
      int64x2_t first[kGroupVectors<Format>], second[kGroupVectors<Format>];
      load_codes<Format>(x, 2 * p, first);
      load_codes<Format>(x, kSecondOf<kRows>(p), second);
      each<kGroupVectors<Format>>([&](auto i) SPECDEC_INLINE {
        pairs_[p][2 * i] = vreinterpretq_s8_s64(vtrn1q_s64(first[i], second[i]));
        pairs_[p][2 * i + 1] = vreinterpretq_s8_s64(vtrn2q_s64(first[i], second[i]));
      });
    });
  }
  template <class OfRows>
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes,
                                                     const HalfBytes<Format>& half_bytes,
                                                     const OfRows& factors) const {
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q)
                               SPECDEC_INLINE { begin_dots<Format, kRows>(factors, dots.of[q]); });
    each<Format::kGroup / 8>([&](auto eight) SPECDEC_INLINE {
      constexpr int kLine = (Format::kIsInt4 ? 1 : 2) * eight * kLineBytes;
      int8x16_t low[kTogether<kRows>], high[kTogether<kRows>];
      load_quarters<kLine>(codes, low);
      if constexpr (!Format::kIsInt4) load_quarters<kLine + kLineBytes>(codes, high);
      each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
        if constexpr (Format::kIsInt4) {
          add(dots.of[q], half_bytes.low(low[q]), half_bytes.high(low[q]), eight);
        } else {
          add(dots.of[q], low[q], high[q], eight);
        }
      });
    });
    return dots;
  }

 private:
  // Adds the products of eight k.
  [[gnu::always_inline]] void add(int32x4_t (&dots)[kDotVectors<kRows>], int8x16_t low,
                                  int8x16_t high, int eight) const {
    const int32x4_t a = vreinterpretq_s32_s8(low), b = vreinterpretq_s32_s8(high);
    const int8x16_t w[2] = {vreinterpretq_s8_s32(vzip1q_s32(a, b)),
                            vreinterpretq_s8_s32(vzip2q_s32(a, b))};
    each<kDotVectors<kRows>>([&](auto vector) SPECDEC_INLINE {
      dots[vector] = vmmlaq_s32(dots[vector], w[vector % 2], pairs_[vector / 2][eight]);
    });
  }

  int8x16_t pairs_[kPairs<kRows>][Format::kGroup / 8];  // [pair][eight k]: those of both rows
};

#endif

#if !defined(__ARM_FEATURE_DOTPROD)

// Products of bytes, summed in pairs in 16-bit lanes: 2 * 128 * 127 < 2^15.
template <class Format, int kRows>
class DotsByProducts {
 public:
  [[gnu::always_inline]] explicit DotsByProducts(const RowPointers<uint8_t>& x) : x_(x) {}
  template <class OfRows>
  [[gnu::always_inline]] QuarterDots<kRows> quarters(const uint8_t* codes,
                                                     const HalfBytes<Format>& half_bytes,
                                                     const OfRows& factors) const {
    QuarterDots<kRows> dots;
    each<kTogether<kRows>>([&](auto q) SPECDEC_INLINE {
      sum_quarter(codes + 16 * q, half_bytes, dots.of[q]);
      if constexpr (kHasStarts<Format>) {
        int32x4_t starts[kRows];
        factors.begin(starts);
        each<kRows>([&](auto r)
                        SPECDEC_INLINE { dots.of[q][r] = vaddq_s32(dots.of[q][r], starts[r]); });
      }
    });
    return dots;
  }

 private:
  [[gnu::always_inline]] void sum_quarter(const uint8_t* codes, const HalfBytes<Format>& half_bytes,
                                          int32x4_t (&dots)[kRows]) const {
    int32x4_t low_sums[kRows], high_sums[kRows];  // of two outputs each, two lanes an output
    each<kRows>([&](auto r) SPECDEC_INLINE { low_sums[r] = high_sums[r] = vdupq_n_s32(0); });
    each<Format::kGroup / 8>([&](auto eight) SPECDEC_INLINE {
      const Codes w = codes_of(codes, half_bytes, eight);
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
    each<kRows>([&](auto r) SPECDEC_INLINE { dots[r] = vpaddq_s32(low_sums[r], high_sums[r]); });
  }
  struct Codes {
    int8x16_t first, second;  // four k each of four outputs
  };
  [[gnu::always_inline]] static Codes codes_of(const uint8_t* codes,
                                               const HalfBytes<Format>& half_bytes, int eight) {
    const int8_t* from = reinterpret_cast<const int8_t*>(codes);
    if constexpr (Format::kIsInt4) {
      const int8x16_t w = vld1q_s8(from + eight * kLineBytes);
      return {half_bytes.low(w), half_bytes.high(w)};
    } else {
      return {vld1q_s8(from + 2 * eight * kLineBytes),
              vld1q_s8(from + (2 * eight + 1) * kLineBytes)};
    }
  }

  const RowPointers<uint8_t>& x_;
};

template <class Format, int kRows>
using GroupDots = DotsByProducts<Format, kRows>;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
template <class Format, int kRows>
using GroupDots =
    std::conditional_t<kInPairs<kRows>, DotsOfPairs<Format, kRows>, DotsOfRows<Format, kRows>>;
#else
template <class Format, int kRows>
using GroupDots = DotsOfRows<Format, kRows>;
#endif

// --- Float sums ---

// A quarter's scales, mins or zeros, arranged as a vector has its outputs.
template <int kRows, int kVector>
[[gnu::always_inline]] inline float32x4_t spread(float32x4_t outputs) {
  if constexpr (!kInPairs<kRows>) return outputs;
  return kVector % 2 == 0 ? vzip1q_f32(outputs, outputs) : vzip2q_f32(outputs, outputs);
}

// sum += a vector's integer sums, scaled.
template <class Format, int kRows, int kVector, class OfRows>
[[gnu::always_inline]] inline float32x4_t add_vector(float32x4_t sum, int32x4_t dots,
                                                     const OfRows& factors, float32x4_t scales,
                                                     float32x4_t mins) {
  float32x4_t dot = vcvtq_f32_s32(dots);
  if constexpr (Format::kHasZeros) {
    dot = factors.template add_mins<kVector>(dot, spread<kRows, kVector>(mins));
  }
  if constexpr (Format::kIsGrouped) {
    const float32x4_t spread_scales = spread<kRows, kVector>(scales);
    sum = vfmaq_f32(sum, dot, factors.template times_scale<kVector>(spread_scales));
  } else {
    sum = factors.template add_scaled<kVector>(sum, dot);
  }
  if constexpr (Format::kHasMins) {
    sum = factors.template add_mins<kVector>(sum, spread<kRows, kVector>(mins));
  }
  return sum;
}

// sums += a quarter's integer sums, scaled.
template <class Format, int kRows, int kQuarter, class OfRows>
[[gnu::always_inline]] inline void add_quarter(const int32x4_t (&dots)[kDotVectors<kRows>],
                                               const uint8_t* header, const OfRows& factors,
                                               SliceSums<kRows>& sums) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(header) + 4 * kQuarter;
  float32x4_t scales{}, mins{};
  if constexpr (Format::kIsGrouped) scales = load_half_quarter(halves);
  if constexpr (kHasFactors<Format>) mins = load_half_quarter(halves + kIntHeaderBytes / 2);
  if constexpr (kAreFew<kRows>) {
    each<kRows>([&](auto r) SPECDEC_INLINE {
      float32x4_t& sum = sums.of[kQuarter][r];
      sum = add_vector<Format, kRows, r>(sum, dots[r], factors, scales, mins);
    });
  } else {
    each<kDotVectors<kRows> / 2>([&](auto two) SPECDEC_INLINE {
      constexpr int kA = 2 * two, kB = kA + 1;
      constexpr int kOffset = 16 * (kQuarter * kDotVectors<kRows> + kA);
      float32x4_t a, b;
      load_two<kOffset>(&sums, a, b);
      a = add_vector<Format, kRows, kA>(a, dots[kA], factors, scales, mins);
      b = add_vector<Format, kRows, kB>(b, dots[kB], factors, scales, mins);
      store_together(a, b);
      sums.of[kQuarter][kA] = a;
      sums.of[kQuarter][kB] = b;
    });
    if constexpr (kDotVectors<kRows> % 2 == 1) {
      constexpr int kLast = kDotVectors<kRows> - 1;
      float32x4_t& sum = sums.of[kQuarter][kLast];
      sum = add_vector<Format, kRows, kLast>(sum, dots[kLast], factors, scales, mins);
    }
  }
}

// sums += the group's integer sums, scaled. `header` is where the group's scales are.
template <class Format, int kRows>
[[gnu::always_inline]] inline void add_group(const uint8_t* codes, const uint8_t* header,
                                             const HalfBytes<Format>& half_bytes,
                                             const RowPointers<uint8_t>& x,
                                             SliceSums<kRows>& sums) {
  const GroupDots<Format, kRows> rows(x);
  const Factors<Format, kRows> of_rows(x);
  const Factors<Format, kRows>* factors = &of_rows;
  each<kQuarters / kTogether<kRows>>([&](auto part) SPECDEC_INLINE {
    constexpr int kFirst = part * kTogether<kRows>;
    // Keeps the compiler from holding the factors in registers, which would spill rows to the
    // stack.
    if constexpr (!kAreFew<kRows>) asm("" : "+r"(factors));
    const QuarterDots<kRows> dots = rows.quarters(codes + 16 * kFirst, half_bytes, *factors);
    each<kTogether<kRows>>([&](auto i) SPECDEC_INLINE {
      add_quarter<Format, kRows, kFirst + i>(dots.of[i], header, *factors, sums);
    });
  });
}

// A slice's sums so far: zeros, or the sums of an earlier part of k.
template <int kRows>
inline void begin_slice(bool starts, const SumsAt& from, SliceSums<kRows>& sums) {
  const auto row = [&](int q, int r) {
    return starts ? vdupq_n_f32(0.0f) : vld1q_f32(from.data + r * from.stride + 4 * q);
  };
  each<kQuarters>([&](auto q) SPECDEC_INLINE {
    if constexpr (kInPairs<kRows>) {
      each<kPairs<kRows>>([&](auto p) SPECDEC_INLINE {
        const float32x4_t first = row(q, 2 * p), second = row(q, kSecondOf<kRows>(p));
        sums.of[q][2 * p] = vzip1q_f32(first, second);
        sums.of[q][2 * p + 1] = vzip2q_f32(first, second);
      });
    } else {
      each<kRows>([&](auto r) SPECDEC_INLINE { sums.of[q][r] = row(q, r); });
    }
  });
}

// Stores a slice's sums at `to`, folded num_folds times with the partial sums before `own`.
template <int kRows>
inline void end_slice(const SliceSums<kRows>& sums, int num_folds, const SumsAt& own,
                      const SumsAt& to) {
  const auto put = [&](int q, int r, float32x4_t sum) {
    const float* before = own.data + r * own.stride + 4 * q;
    for (int f = 1; f <= num_folds; ++f) sum = vaddq_f32(vld1q_f32(before - f * kLanes), sum);
    vst1q_f32(to.data + r * to.stride + 4 * q, sum);
  };
  each<kQuarters>([&](auto q) SPECDEC_INLINE {
    if constexpr (kInPairs<kRows>) {
      each<kPairs<kRows>>([&](auto p) SPECDEC_INLINE {
        const float32x4_t even = sums.of[q][2 * p], odd = sums.of[q][2 * p + 1];
        put(q, 2 * p, vuzp1q_f32(even, odd));
        if (2 * p + 1 < kRows) put(q, 2 * p + 1, vuzp2q_f32(even, odd));
      });
    } else {
      each<kRows>([&](auto r) SPECDEC_INLINE { put(q, r, sums.of[q][r]); });
    }
  });
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
