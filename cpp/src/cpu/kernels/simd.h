// Sixteen float lanes on every instruction set. Only for files compiled once per ISA
// (SPECDEC_ISA is the namespace). Operations and reduction trees are the same on all of them.
//
// Include nothing here, or in any file that includes this one, whose inline functions other files
// use, too: the linker keeps one copy of an inline function, and that copy must not be the AVX-512
// one.
#pragma once

#include <cstdint>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(SPECDEC_NEON)
#include <arm_neon.h>
#endif

#ifndef SPECDEC_ISA
#error "compile this file through specdec_isa_kernels() in cpp/src/cpu/CMakeLists.txt"
#endif

namespace specdec::cpu::SPECDEC_ISA {

inline constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct F32x16 {
  __m512 v;
};
inline F32x16 zero() { return {_mm512_setzero_ps()}; }
inline F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Sixteen bfloat16 at p, widened.
inline F32x16 load_bf16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Sixteen int8 at p, as floats.
inline F32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Lanes 0, 0, 1, 1, ... 7, 7 of a, and 8, 8, ... 15, 15.
inline F32x16 double_low(F32x16 a) {
  const __m512i lanes = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return {_mm512_permutexvar_ps(lanes, a.v)};
}
inline F32x16 double_high(F32x16 a) {
  const __m512i lanes =
      _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8);
  return {_mm512_permutexvar_ps(lanes, a.v)};
}
inline __mmask16 lanes_below(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// Lanes n and above are `fill`; nothing at or past p + n is read. n in [0, 16].
inline F32x16 load_partial(const float* p, int n, float fill = 0.0f) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), lanes_below(n), p)};
}
// Writes lanes below n only.
inline void store_partial(float* p, F32x16 a, int n) {
  _mm512_mask_storeu_ps(p, lanes_below(n), a.v);
}
// Per lane: a < b ? x : y (y where a or b is NaN).
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
inline F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even; |a| < 2^22.
inline F32x16 round_even(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-126, 128] and a in [0.5, 2).
inline F32x16 scale_by_power(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a * 2^n for integral n <= 0 and a in [0.5, 2). Below n = -126 the result is negligible, from -150
// on it is 0.
inline F32x16 scale_down(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a = mantissa * 2^exponent with the mantissa in [1, 2), for normal positive a.
inline F32x16 mantissa_of(F32x16 a) {
  return {_mm512_getmant_ps(a.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src)};
}
inline F32x16 exponent_of(F32x16 a) { return {_mm512_getexp_ps(a.v)}; }
// Rounded to nearest, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i top = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(top));
}

#elif defined(__AVX2__)

struct F32x16 {
  __m256 lo, hi;
};
inline F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 load_bf16(const uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline F32x16 load_i8(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
inline F32x16 double_lanes(__m256 a) {
  const __m256i low = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
  const __m256i high = _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4);
  return {_mm256_permutevar8x32_ps(a, low), _mm256_permutevar8x32_ps(a, high)};
}
inline F32x16 double_low(F32x16 a) { return double_lanes(a.lo); }
inline F32x16 double_high(F32x16 a) { return double_lanes(a.hi); }
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline F32x16 abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline F32x16 round_even(F32x16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
// 2^n as a float, integral n in [-126, 127].
inline __m256 power_of_two(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline F32x16 scale_by_power(F32x16 a, F32x16 n) {
  // 2^128 is no float, so a is doubled for it.
  const F32x16 low = min(n, broadcast(127.0f));
  return fma(a, n - low, a) * F32x16{power_of_two(low.lo), power_of_two(low.hi)};
}
inline F32x16 scale_down(F32x16 a, F32x16 n) {
  // 2^-127 comes out as 0.
  const F32x16 clamped = max(n, broadcast(-127.0f));
  return a * F32x16{power_of_two(clamped.lo), power_of_two(clamped.hi)};
}
inline __m256 mantissa_of(__m256 a) {
  const __m256i fraction = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffff));
  return _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)));
}
inline F32x16 mantissa_of(F32x16 a) { return {mantissa_of(a.lo), mantissa_of(a.hi)}; }
inline __m256 exponent_of(__m256 a) {
  const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
inline F32x16 exponent_of(F32x16 a) { return {exponent_of(a.lo), exponent_of(a.hi)}; }
// The bfloat16 bits of eight floats, one in each 32-bit lane.
inline __m256i round_to_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16(a.lo), round_to_bf16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

#else  // the compiler's own vectors, which it lowers to the target's (SSE2, NEON), with
       // NEON instructions where they are better

// Quarters, because g++ keeps vectors wider than the target's in memory.
inline constexpr int kQuarters = 4;
typedef float FloatQuarter __attribute__((vector_size(16)));
typedef int32_t IntQuarter __attribute__((vector_size(16)));
typedef uint32_t WordQuarter __attribute__((vector_size(16)));

struct F32x16 {
  FloatQuarter q[kQuarters];
};
// Calls op(quarter of a, quarter of others...) for each quarter.
template <class Op, class... Others>
inline F32x16 by_quarter(Op op, F32x16 a, Others... others) {
  return {{op(a.q[0], others.q[0]...), op(a.q[1], others.q[1]...), op(a.q[2], others.q[2]...),
           op(a.q[3], others.q[3]...)}};
}
inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
inline F32x16 broadcast(float x) {
  const FloatQuarter q = {x, x, x, x};
  return {{q, q, q, q}};
}
inline F32x16 zero() { return broadcast(0.0f); }
inline FloatQuarter load_quarter(const float* p) {
  FloatQuarter q;
  __builtin_memcpy(&q, p, sizeof(q));
  return q;
}
inline F32x16 load(const float* p) {
  return {{load_quarter(p), load_quarter(p + 4), load_quarter(p + 8), load_quarter(p + 12)}};
}
inline void store(float* p, F32x16 a) {
  for (int i = 0; i < kQuarters; ++i) __builtin_memcpy(p + 4 * i, &a.q[i], sizeof(a.q[i]));
}
inline F32x16 operator+(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x + y; }, a, b);
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x - y; }, a, b);
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x * y; }, a, b);
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x / y; }, a, b);
}
inline F32x16 max(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x > y ? x : y; }, a, b);
}
inline F32x16 min(F32x16 a, F32x16 b) {
  return by_quarter([](FloatQuarter x, FloatQuarter y) { return x < y ? x : y; }, a, b);
}
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i) r.q[i] = a.q[i] < b.q[i] ? x.q[i] : y.q[i];
  return r;
}
inline F32x16 abs(F32x16 a) {
  return by_quarter([](FloatQuarter x) { return (FloatQuarter)((WordQuarter)x & 0x7fffffffu); }, a);
}
inline F32x16 scale_by_power(F32x16 a, F32x16 n) {
  // Clamped first, because converting a float that an int cannot hold is undefined. 2^128 is no
  // float either, so a is doubled for it.
  const F32x16 clamped = min(max(n, broadcast(-126.0f)), broadcast(127.0f));
  const F32x16 doubled = select_less(broadcast(127.0f), n, a + a, a);
  return by_quarter(
      [](FloatQuarter x, FloatQuarter power) {
        const IntQuarter exponent = __builtin_convertvector(power, IntQuarter);
        return x * (FloatQuarter)((WordQuarter)(exponent + 127) << 23);
      },
      doubled, clamped);
}
inline F32x16 scale_down(F32x16 a, F32x16 n) {
  // 2^-127 comes out as 0.
  return by_quarter(
      [](FloatQuarter x, FloatQuarter power) {
        const IntQuarter exponent = __builtin_convertvector(power, IntQuarter);
        return x * (FloatQuarter)((WordQuarter)(exponent + 127) << 23);
      },
      a, max(n, broadcast(-127.0f)));
}
inline F32x16 mantissa_of(F32x16 a) {
  return by_quarter(
      [](FloatQuarter x) { return (FloatQuarter)(((WordQuarter)x & 0x7fffffu) | 0x3f800000u); }, a);
}
inline F32x16 exponent_of(F32x16 a) {
  return by_quarter(
      [](FloatQuarter x) {
        return __builtin_convertvector((IntQuarter)((WordQuarter)x >> 23) - 127, FloatQuarter);
      },
      a);
}

#if defined(SPECDEC_NEON)
#include "cpu/kernels/simd_neon.h"
#else

inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return by_quarter([](FloatQuarter x, FloatQuarter y, FloatQuarter z) { return z + x * y; }, a, b,
                    c);
}
inline F32x16 load_bf16(const uint16_t* p) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i, p += 4) {
    const WordQuarter words = {p[0], p[1], p[2], p[3]};
    r.q[i] = (FloatQuarter)(words << 16);
  }
  return r;
}
inline F32x16 load_i8(const int8_t* p) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i, p += 4) {
    const IntQuarter codes = {p[0], p[1], p[2], p[3]};
    r.q[i] = __builtin_convertvector(codes, FloatQuarter);
  }
  return r;
}
inline F32x16 double_low(F32x16 a) {
  F32x16 r;
  for (int i = 0; i < kLanes; ++i) r.q[i / 4][i % 4] = a.q[i / 8][i / 2 % 4];
  return r;
}
inline F32x16 double_high(F32x16 a) { return double_low({{a.q[2], a.q[3], a.q[2], a.q[3]}}); }
inline F32x16 sqrt(F32x16 a) {
  float lanes[kLanes];
  store(lanes, a);
  for (float& lane : lanes) lane = __builtin_sqrtf(lane);
  return load(lanes);
}
inline F32x16 round_even(F32x16 a) {
  // Adding 1.5 * 2^23 leaves no room for a fraction, in the rounding mode of the machine.
  return by_quarter([](FloatQuarter x) { return (x + 0x1.8p23f) - 0x1.8p23f; }, a);
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = bits_of(lanes[i]);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    p[i] = static_cast<uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
  }
}

#endif

#endif

#if !defined(__AVX512F__)

inline F32x16 load_partial(const float* p, int n, float fill = 0.0f) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}
inline void store_partial(float* p, F32x16 a, int n) {
  float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

#endif

inline void store_bf16_partial(uint16_t* p, F32x16 a, int n) {
  uint16_t lanes[kLanes];
  store_bf16(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
inline F32x16 load_bf16_partial(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}

// Sums and maxima by a fixed tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
#if defined(__AVX2__) || defined(__AVX512F__)
#if defined(__AVX512F__)
inline __m256 low_half(F32x16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 low_half(F32x16 a) { return a.lo; }
inline __m256 high_half(F32x16 a) { return a.hi; }
#endif
inline float reduce_add(F32x16 a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F32x16 a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#elif !defined(SPECDEC_NEON)
inline float reduce_add(F32x16 a) {
  float lanes[kLanes];
  store(lanes, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
inline float reduce_max(F32x16 a) {
  float lanes[kLanes];
  store(lanes, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0];
}
#endif

// Thirty-two bfloat16 at p: a, then b. Subnormal numbers may become 0.
inline void store_bf16(uint16_t* p, F32x16 a, F32x16 b) {
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
#else
  store_bf16(p, a);
  store_bf16(p + kLanes, b);
#endif
}
// x, y, x, y, ...
inline F32x16 alternate(float x, float y) {
  const float lanes[kLanes] = {x, y, x, y, x, y, x, y, x, y, x, y, x, y, x, y};
  return load(lanes);
}

}  // namespace specdec::cpu::SPECDEC_ISA
