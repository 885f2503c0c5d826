// Philox4x32-10 sixteen counters at a time, and the Gumbel noise made from its words. Included only
// by files compiled once per ISA; see simd.h for what such a file may include.
#pragma once

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

#if defined(__AVX512F__)

struct U32x16 {
  __m512i v;
};
inline U32x16 broadcast_u32(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline U32x16 load_u32(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline U32x16 operator+(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U32x16 operator^(U32x16 a, U32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline U32x16 operator&(U32x16 a, U32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline U32x16 min(U32x16 a, U32x16 b) { return {_mm512_min_epu32(a.v, b.v)}; }
// Arithmetic shift: the sign is kept.
inline U32x16 shift_right_signed_23(U32x16 a) { return {_mm512_srai_epi32(a.v, 23)}; }
inline U32x16 bits_of(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
inline F32x16 float_from_bits(U32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline F32x16 float_of_unsigned(U32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }
inline F32x16 float_of_signed(U32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline F32x16 select_zero(U32x16 test, F32x16 if_zero, F32x16 otherwise) {
  return {_mm512_mask_blend_ps(_mm512_test_epi32_mask(test.v, test.v), if_zero.v, otherwise.v)};
}
// Bit i: a[i] >= b[i] (false for NaN).
inline uint32_t mask_at_least(F32x16 a, F32x16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
inline void multiply_wide(U32x16 a, U32x16 b, U32x16* high, U32x16* low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  low->v = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
  high->v = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}
// Transposes the 4x4 matrices formed by lanes 4L..4L+3 of the four vectors, for each L.
inline void transpose_quads(U32x16 (&w)[4]) {
  const __m512i t0 = _mm512_unpacklo_epi32(w[0].v, w[1].v);
  const __m512i t1 = _mm512_unpacklo_epi32(w[2].v, w[3].v);
  const __m512i t2 = _mm512_unpackhi_epi32(w[0].v, w[1].v);
  const __m512i t3 = _mm512_unpackhi_epi32(w[2].v, w[3].v);
  w[0].v = _mm512_unpacklo_epi64(t0, t1);
  w[1].v = _mm512_unpackhi_epi64(t0, t1);
  w[2].v = _mm512_unpacklo_epi64(t2, t3);
  w[3].v = _mm512_unpackhi_epi64(t2, t3);
}

#elif defined(__AVX2__)

struct U32x16 {
  __m256i lo, hi;
};
inline U32x16 broadcast_u32(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
inline U32x16 load_u32(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline U32x16 operator+(U32x16 a, U32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline U32x16 operator^(U32x16 a, U32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
inline U32x16 operator&(U32x16 a, U32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline U32x16 min(U32x16 a, U32x16 b) {
  return {_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)};
}
inline U32x16 shift_right_signed_23(U32x16 a) {
  return {_mm256_srai_epi32(a.lo, 23), _mm256_srai_epi32(a.hi, 23)};
}
inline U32x16 bits_of(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline F32x16 float_from_bits(U32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
// AVX2 converts only signed integers: both halves of 16 bits are exact, their sum is rounded once.
inline __m256 float_of_unsigned_8(__m256i a) {
  const __m256 upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16));
  const __m256 lower = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xFFFF)));
  return _mm256_add_ps(_mm256_mul_ps(upper, _mm256_set1_ps(65536.0f)), lower);
}
inline F32x16 float_of_unsigned(U32x16 a) {
  return {float_of_unsigned_8(a.lo), float_of_unsigned_8(a.hi)};
}
inline F32x16 float_of_signed(U32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline F32x16 select_zero(U32x16 test, F32x16 if_zero, F32x16 otherwise) {
  const __m256i none = _mm256_setzero_si256();
  const __m256 lo = _mm256_castsi256_ps(_mm256_cmpeq_epi32(test.lo, none));
  const __m256 hi = _mm256_castsi256_ps(_mm256_cmpeq_epi32(test.hi, none));
  return {_mm256_blendv_ps(otherwise.lo, if_zero.lo, lo),
          _mm256_blendv_ps(otherwise.hi, if_zero.hi, hi)};
}
inline uint32_t mask_at_least(F32x16 a, F32x16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
  return static_cast<uint32_t>(lo) | static_cast<uint32_t>(hi) << 8;
}
inline void multiply_wide_8(__m256i a, __m256i b, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
inline void multiply_wide(U32x16 a, U32x16 b, U32x16* high, U32x16* low) {
  multiply_wide_8(a.lo, b.lo, &high->lo, &low->lo);
  multiply_wide_8(a.hi, b.hi, &high->hi, &low->hi);
}
inline void transpose_quads_8(__m256i* w0, __m256i* w1, __m256i* w2, __m256i* w3) {
  const __m256i t0 = _mm256_unpacklo_epi32(*w0, *w1);
  const __m256i t1 = _mm256_unpacklo_epi32(*w2, *w3);
  const __m256i t2 = _mm256_unpackhi_epi32(*w0, *w1);
  const __m256i t3 = _mm256_unpackhi_epi32(*w2, *w3);
  *w0 = _mm256_unpacklo_epi64(t0, t1);
  *w1 = _mm256_unpackhi_epi64(t0, t1);
  *w2 = _mm256_unpacklo_epi64(t2, t3);
  *w3 = _mm256_unpackhi_epi64(t2, t3);
}
inline void transpose_quads(U32x16 (&w)[4]) {
  transpose_quads_8(&w[0].lo, &w[1].lo, &w[2].lo, &w[3].lo);
  transpose_quads_8(&w[0].hi, &w[1].hi, &w[2].hi, &w[3].hi);
}

#elif defined(SPECDEC_NEON)
#include "cpu/kernels/philox_neon.h"
#else

struct U32x16 {
  uint32_t v[kLanes];
};
inline U32x16 broadcast_u32(uint32_t x) {
  U32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = x;
  return r;
}
inline U32x16 load_u32(const uint32_t* p) {
  U32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
  return r;
}
inline U32x16 operator+(U32x16 a, U32x16 b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
  return a;
}
inline U32x16 operator^(U32x16 a, U32x16 b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] ^= b.v[i];
  return a;
}
inline U32x16 operator&(U32x16 a, U32x16 b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] &= b.v[i];
  return a;
}
inline U32x16 min(U32x16 a, U32x16 b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline U32x16 shift_right_signed_23(U32x16 a) {
  for (int i = 0; i < kLanes; ++i) {
    a.v[i] = static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> 23);
  }
  return a;
}
inline U32x16 bits_of(F32x16 a) {
  U32x16 r;
  __builtin_memcpy(&r, &a, sizeof(r));
  return r;
}
inline F32x16 float_from_bits(U32x16 a) {
  F32x16 r;
  __builtin_memcpy(&r, &a, sizeof(r));
  return r;
}
inline F32x16 float_of_unsigned(U32x16 a) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(a.v[i]);
  return load(lanes);
}
inline F32x16 float_of_signed(U32x16 a) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(static_cast<int32_t>(a.v[i]));
  return load(lanes);
}
inline F32x16 select_zero(U32x16 test, F32x16 if_zero, F32x16 otherwise) {
  float zero_lanes[kLanes];
  float lanes[kLanes];
  store(zero_lanes, if_zero);
  store(lanes, otherwise);
  for (int i = 0; i < kLanes; ++i) lanes[i] = test.v[i] == 0 ? zero_lanes[i] : lanes[i];
  return load(lanes);
}
inline uint32_t mask_at_least(F32x16 a, F32x16 b) {
  float a_lanes[kLanes];
  float b_lanes[kLanes];
  store(a_lanes, a);
  store(b_lanes, b);
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(a_lanes[i] >= b_lanes[i]) << i;
  return mask;
}
inline void multiply_wide(U32x16 a, U32x16 b, U32x16* high, U32x16* low) {
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t product = static_cast<uint64_t>(a.v[i]) * b.v[i];
    high->v[i] = static_cast<uint32_t>(product >> 32);
    low->v[i] = static_cast<uint32_t>(product);
  }
}
inline void transpose_quads(U32x16 (&w)[4]) {
  for (int quad = 0; quad < kLanes; quad += 4) {
    for (int i = 0; i < 4; ++i) {
      for (int j = i + 1; j < 4; ++j) {
        const uint32_t upper = w[i].v[quad + j];
        w[i].v[quad + j] = w[j].v[quad + i];
        w[j].v[quad + i] = upper;
      }
    }
  }
}

#endif

struct PhiloxKey {
  uint32_t low, high;
};

// In: the sixteen counters (words[i] holds word i of each). Out: their outputs, same order.
inline void philox4x32_10(U32x16 (&words)[4], PhiloxKey key) {
  const U32x16 multiplier_a = broadcast_u32(0xD2511F53u);
  const U32x16 multiplier_b = broadcast_u32(0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    U32x16 high_a, low_a, high_b, low_b;
    multiply_wide(words[0], multiplier_a, &high_a, &low_a);
    multiply_wide(words[2], multiplier_b, &high_b, &low_b);
    words[0] = high_b ^ words[1] ^ broadcast_u32(key.low);
    words[1] = low_b;
    words[2] = high_a ^ words[3] ^ broadcast_u32(key.high);
    words[3] = low_a;
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
}

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]; relative error of the polynomial 6e-9.
inline F32x16 log1p_reduced(F32x16 f) {
  F32x16 p = broadcast(-0.0763565153f);
  p = fma(p, f, broadcast(0.127633259f));
  p = fma(p, f, broadcast(-0.131605834f));
  p = fma(p, f, broadcast(0.142015532f));
  p = fma(p, f, broadcast(-0.166232988f));
  p = fma(p, f, broadcast(0.200012341f));
  p = fma(p, f, broadcast(-0.250008225f));
  p = fma(p, f, broadcast(0.333333313f));
  const F32x16 square = f * f;
  return fma(square * f, p, fma(square, broadcast(-0.5f), f));
}

// log(x) for positive normal x. For x in [sqrt(1/2), sqrt(2)), `x_minus_1` replaces x - 1, because
// the caller may know it more precisely.
inline F32x16 log_positive(F32x16 x, F32x16 x_minus_1) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3u;
  const U32x16 above = bits_of(x) + broadcast_u32(0u - kSqrtHalf);
  const U32x16 exponent = shift_right_signed_23(above);
  const U32x16 mantissa = (above & broadcast_u32(0x007FFFFFu)) + broadcast_u32(kSqrtHalf);
  const F32x16 reduced = float_from_bits(mantissa) - broadcast(1.0f);
  const F32x16 f = select_zero(exponent, x_minus_1, reduced);
  const F32x16 e = float_of_signed(exponent);
  // ln 2 in two parts, the first with zeros at its end so that e * part is exact.
  return fma(e, broadcast(0.693359375f), fma(e, broadcast(-2.12194440e-4f), log1p_reduced(f)));
}

// Standard Gumbel noise of uniformly random words: -log(E), E = -log1p(-v), v = (word + 1/2) /
// 2^32. 1 - v is made from the complement of the word, so neither end of (0, 1) loses precision.
// Decreasing in the word up to rounding; between -3.13 and 22.88.
inline F32x16 gumbel_noise(U32x16 word) {
  const F32x16 scale = broadcast(0x1p-32f);
  const F32x16 half = broadcast(0.5f);
  const F32x16 v = (float_of_unsigned(word) + half) * scale;
  const F32x16 one_minus_v = (float_of_unsigned(word ^ broadcast_u32(0xFFFFFFFFu)) + half) * scale;
  const F32x16 exponential = zero() - log_positive(one_minus_v, zero() - v);
  return zero() - log_positive(exponential, exponential - broadcast(1.0f));
}

}  // namespace specdec::cpu::SPECDEC_ISA
