// The factors of a group's integer sums on ARM64, one set per row, and the values that the sums
// start from. Only for kernels/linear_int_neon.h, which defines slots and quarters.
#pragma once

#include <arm_neon.h>

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Calls body(0) to body(kCount - 1), each with a constant. The compiler unrolls loops too late to
// keep arrays that they index in registers.
template <class Body, int... kIndex>
[[gnu::always_inline]] inline void each_of(std::integer_sequence<int, kIndex...>, Body&& body) {
  (body(std::integral_constant<int, kIndex>()), ...);
}
template <int kCount, class Body>
[[gnu::always_inline]] inline void each(Body&& body) {
  each_of(std::make_integer_sequence<int, kCount>(), body);
}
#define SPECDEC_INLINE __attribute__((always_inline))

#if defined(__ARM_FEATURE_MATMUL_INT8)
template <int kRows>
constexpr bool kInPairs = kRows > 2;
#else
template <int kRows>
constexpr bool kInPairs = false;
#endif
template <int kRows>
constexpr int kPairs = (kRows + 1) / 2;  // an odd last row is its own partner
template <int kRows>
constexpr int kDotVectors = kInPairs<kRows> ? 2 * kPairs<kRows> : kRows;
template <int kRows>
constexpr int kSecondOf(int pair) {
  return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair;
}
// Whether there are so few rows that registers hold everything.
template <int kRows>
constexpr bool kAreFew = kRows <= 2;

// Loads two adjacent vectors by one instruction. g++ does so by itself only where it happens to
// have them in suitable registers.
template <int kOffset, class Vector>
[[gnu::always_inline]] inline void load_two(const void* from, Vector& first, Vector& second) {
  const Vector* at = reinterpret_cast<const Vector*>(static_cast<const char*>(from) + kOffset);
#if defined(__clang__)
  first = at[0];
  second = at[1];
#else
  Vector a, b;  // separate variables show the compiler that array elements need no memory
  asm("ldp %q0, %q1, [%2, %3]"
      : "=w"(a), "=w"(b)
      : "r"(from), "i"(kOffset), "m"(at[0]), "m"(at[1]));
  first = a;
  second = b;
#endif
}

// Makes the compiler compute both vectors before it stores either, so that one instruction stores
// them.
template <class Vector>
[[gnu::always_inline]] inline void store_together(const Vector& first, Vector& second) {
  asm("" : "+w"(second) : "w"(first));
}

// 8-bit codes are signed here, so their sums need no start value.
template <class Format>
constexpr bool kHasStarts = Format::kOffset == kInt4Offset;

// Whether weights have mins or zeros, whose factors the rows have.
template <class Format>
constexpr bool kHasFactors = Format::kHasMins || Format::kHasZeros;

// Each class below has
//   begin        sets the integer sums of the slots to their start values, where the format has any
//   times_scale  v * the slot's scales of rows
//   add_scaled   sum + v * the slot's scales of rows, rounded once
//   add_mins     sum + v * the slot's mins of rows (IntRowGroup::min), rounded once

// Few rows, one at a time.
template <class Format, int kRows>
class FewRowFactors {
 public:
  [[gnu::always_inline]] explicit FewRowFactors(const RowPointers<uint8_t>& x) {
    each<kRows>([&](auto r) SPECDEC_INLINE {
      const auto& group = group_of<Format>(x, r);
      scales_[r] = group.scale;
      starts_[r] = group.start;
      mins_[r] = group.min;
    });
  }
  [[gnu::always_inline]] void begin(int32x4_t (&dots)[kRows]) const {
    each<kRows>([&](auto r) SPECDEC_INLINE { dots[r] = vdupq_n_s32(starts_[r]); });
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t times_scale(float32x4_t v) const {
    return vmulq_n_f32(v, scales_[kVector]);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_scaled(float32x4_t sum, float32x4_t v) const {
    return vfmaq_n_f32(sum, v, scales_[kVector]);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_mins(float32x4_t sum, float32x4_t v) const {
    return vfmaq_n_f32(sum, v, mins_[kVector]);
  }

 private:
  float scales_[kRows];
  int32_t starts_[kRows];
  float mins_[kRows];
};

template <class Format>
[[gnu::always_inline]] inline float32x4_t scale_and_start(const RowPointers<uint8_t>& x, int row) {
  return vcombine_f32(vld1_f32(&group_of<Format>(x, row).scale), vdup_n_f32(0.0f));
}

// Rows, one per lane.
template <class Format, int kRows>
class RowFactors {
 public:
  [[gnu::always_inline]] explicit RowFactors(const RowPointers<uint8_t>& x) {
    each<kFours>([&](auto four) SPECDEC_INLINE {
      constexpr int r0 = 4 * four, r1 = row(r0 + 1), r2 = row(r0 + 2), r3 = row(r0 + 3);
      const float32x4_t low =
          vzip1q_f32(scale_and_start<Format>(x, r0), scale_and_start<Format>(x, r1));
      const float32x4_t high =
          vzip1q_f32(scale_and_start<Format>(x, r2), scale_and_start<Format>(x, r3));
      scales_[four] = as_floats(vzip1q_f64(as_doubles(low), as_doubles(high)));
      starts_[four] = vreinterpretq_s32_f64(vzip2q_f64(as_doubles(low), as_doubles(high)));
      if constexpr (kHasFactors<Format>) {
        mins_[four] = float32x4_t{group_of<Format>(x, r0).min, group_of<Format>(x, r1).min,
                                  group_of<Format>(x, r2).min, group_of<Format>(x, r3).min};
      }
    });
  }
  [[gnu::always_inline]] void begin(int32x4_t (&dots)[kRows]) const {
    each<kRows>([&](auto r) SPECDEC_INLINE { dots[r] = vdupq_laneq_s32(starts_[r / 4], r % 4); });
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t times_scale(float32x4_t v) const {
    return vmulq_laneq_f32(v, scales_[kVector / 4], kVector % 4);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_scaled(float32x4_t sum, float32x4_t v) const {
    return vfmaq_laneq_f32(sum, v, scales_[kVector / 4], kVector % 4);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_mins(float32x4_t sum, float32x4_t v) const {
    return vfmaq_laneq_f32(sum, v, mins_[kVector / 4], kVector % 4);
  }

 private:
  static constexpr int kFours = (kRows + 3) / 4;
  static constexpr int row(int r) { return r < kRows ? r : kRows - 1; }
  static float64x2_t as_doubles(float32x4_t v) { return vreinterpretq_f64_f32(v); }
  static float32x4_t as_floats(float64x2_t v) { return vreinterpretq_f32_f64(v); }

  float32x4_t scales_[kFours];
  int32x4_t starts_[kFours];
  float32x4_t mins_[kFours];
};

// Pairs of rows, r0 r1 r0 r1.
template <class Format, int kRows>
class PairFactors {
 public:
  [[gnu::always_inline]] explicit PairFactors(const RowPointers<uint8_t>& x) {
    float32x4_t scales[kPairs<kRows>];
    int32x4_t starts[kPairs<kRows>];
    each<kPairs<kRows>>([&](auto p) SPECDEC_INLINE {
      constexpr int r0 = 2 * p, r1 = kSecondOf<kRows>(p);
      const float64x2_t both = vreinterpretq_f64_f32(
          vzip1q_f32(scale_and_start<Format>(x, r0), scale_and_start<Format>(x, r1)));
      scales[p] = vreinterpretq_f32_f64(vdupq_laneq_f64(both, 0));
      starts[p] = vreinterpretq_s32_f64(vdupq_laneq_f64(both, 1));
      if constexpr (p % 2 == 1) {
        store_together(scales[p - 1], scales[p]);
        store_together(starts[p - 1], starts[p]);
      }
      if constexpr (kHasFactors<Format>) {
        const float m0 = group_of<Format>(x, r0).min, m1 = group_of<Format>(x, r1).min;
        mins_[p] = float32x4_t{m0, m1, m0, m1};
      }
    });
    each<kPairs<kRows>>([&](auto p) SPECDEC_INLINE {
      scales_[p] = scales[p];
      starts_[p] = starts[p];
    });
  }
  // Loads a pair's start values once for each of its slots, together with the next pair's: copying
  // them would take one more instruction.
  [[gnu::always_inline]] void begin(int32x4_t (&dots)[kDotVectors<kRows>]) const {
    each<2>([&](auto side) SPECDEC_INLINE {
      each<kPairs<kRows> / 2>([&](auto two) SPECDEC_INLINE {
        load_two<32 * two>(starts_, dots[4 * two + side], dots[4 * two + 2 + side]);
      });
      if constexpr (kPairs<kRows> % 2 == 1) {
        dots[kDotVectors<kRows> - 2 + side] = starts_[kPairs<kRows> - 1];
      }
    });
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t times_scale(float32x4_t v) const {
    return vmulq_f32(v, scales_[kVector / 2]);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_scaled(float32x4_t sum, float32x4_t v) const {
    return vfmaq_f32(sum, v, scales_[kVector / 2]);
  }
  template <int kVector>
  [[gnu::always_inline]] float32x4_t add_mins(float32x4_t sum, float32x4_t v) const {
    return vfmaq_f32(sum, v, mins_[kVector / 2]);
  }

 private:
  float32x4_t scales_[kPairs<kRows>];
  int32x4_t starts_[kPairs<kRows>];
  float32x4_t mins_[kPairs<kRows>];
};

template <class Format, int kRows>
using Factors = std::conditional_t<
    kAreFew<kRows>, FewRowFactors<Format, kRows>,
    std::conditional_t<kInPairs<kRows>, PairFactors<Format, kRows>, RowFactors<Format, kRows>>>;

// Start values of a quarter's integer sums.
template <class Format, int kRows, class OfRows>
[[gnu::always_inline]] inline void begin_dots(const OfRows& factors,
                                              int32x4_t (&dots)[kDotVectors<kRows>]) {
  if constexpr (kHasStarts<Format>) {
    factors.begin(dots);
  } else {
    each<kDotVectors<kRows>>([&](auto vector) SPECDEC_INLINE { dots[vector] = vdupq_n_s32(0); });
  }
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
