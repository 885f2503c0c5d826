// Small integers sixteen lanes at a time, and float16: exact sums of products of bytes on every
// instruction set. The rules of simd.h hold.
//
// A quad is four neighbouring k of one output or row. Quads hold those of 16 outputs as unsigned
// bytes, a QuadFactor one row's four signed bytes for all lanes; dot_quads adds, exactly,
//   acc[lane] += sum_i quads[lane][i] * factor[i]
#pragma once

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

inline int word_at(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(__AVX512F__)

struct I32x16 {
  __m512i v;
};
inline I32x16 broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Sixteen float16 at p, widened.
inline F32x16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// The low bytes of integral lanes in [-128, 255].
inline void store_bytes(void* p, F32x16 a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

#if defined(__AVX512VNNI__)

struct Quads {
  __m512i v;
};
struct QuadFactor {
  __m512i v;
};
inline Quads quads_of(__m512i bytes) { return {bytes}; }
inline QuadFactor broadcast_quad(const int8_t* p) { return {_mm512_set1_epi32(word_at(p))}; }
inline I32x16 dot_quads(I32x16 acc, Quads w, QuadFactor x) {
  return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
}

#else

// Even and odd bytes widened to 16 bits, whose products in pairs a 32-bit lane holds exactly.
struct Quads {
  __m512i even, odd;
};
struct QuadFactor {
  __m512i even, odd;
};
inline Quads quads_of(__m512i bytes) {
  return {_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(bytes, 8)};
}
inline QuadFactor broadcast_quad(const int8_t* p) {
  const __m512i bytes = _mm512_set1_epi32(word_at(p));
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
}
inline I32x16 dot_quads(I32x16 acc, Quads w, QuadFactor x) {
  const __m512i sum = _mm512_add_epi32(acc.v, _mm512_madd_epi16(w.even, x.even));
  return {_mm512_add_epi32(sum, _mm512_madd_epi16(w.odd, x.odd))};
}

#endif

inline Quads load_quads(const uint8_t* p) { return quads_of(_mm512_loadu_si512(p)); }
// 64 bytes of two quads an output: one in the low halves, one in the high halves.
inline void load_half_byte_quads(const uint8_t* p, Quads& low, Quads& high) {
  const __m512i bytes = _mm512_loadu_si512(p);
  const __m512i mask = _mm512_set1_epi8(0x0f);
  low = quads_of(_mm512_and_si512(bytes, mask));
  high = quads_of(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask));
}

#elif defined(__AVX2__)

struct I32x16 {
  __m256i lo, hi;
};
inline I32x16 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline F32x16 load_half(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline void store_bytes(void* p, F32x16 a) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(_mm256_cvtps_epi32(a.lo), low),
                                            _mm256_and_si256(_mm256_cvtps_epi32(a.hi), low));
  const __m256i ordered = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
  _mm_storeu_si128(
      static_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

struct Quads {
  __m256i even[2], odd[2];
};
struct QuadFactor {
  __m256i even, odd;
};
inline Quads quads_of(__m256i lo, __m256i hi) {
  const __m256i low = _mm256_set1_epi16(0xff);
  return {{_mm256_and_si256(lo, low), _mm256_and_si256(hi, low)},
          {_mm256_srli_epi16(lo, 8), _mm256_srli_epi16(hi, 8)}};
}
inline QuadFactor broadcast_quad(const int8_t* p) {
  const __m256i bytes = _mm256_set1_epi32(word_at(p));
  return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
}
inline __m256i dot_quads(__m256i acc, __m256i even, __m256i odd, QuadFactor x) {
  const __m256i sum = _mm256_add_epi32(acc, _mm256_madd_epi16(even, x.even));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, x.odd));
}
inline I32x16 dot_quads(I32x16 acc, const Quads& w, QuadFactor x) {
  return {dot_quads(acc.lo, w.even[0], w.odd[0], x), dot_quads(acc.hi, w.even[1], w.odd[1], x)};
}
inline Quads load_quads(const uint8_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return quads_of(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1));
}
inline void load_half_byte_quads(const uint8_t* p, Quads& low, Quads& high) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  const __m256i lo = _mm256_loadu_si256(halves), hi = _mm256_loadu_si256(halves + 1);
  const __m256i mask = _mm256_set1_epi8(0x0f);
  low = quads_of(_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask));
  high = quads_of(_mm256_and_si256(_mm256_srli_epi16(lo, 4), mask),
                  _mm256_and_si256(_mm256_srli_epi16(hi, 4), mask));
}

#else

struct I32x16 {
  IntQuarter q[kQuarters];
};
inline I32x16 broadcast_int(int32_t x) {
  const IntQuarter q = {x, x, x, x};
  return {{q, q, q, q}};
}
inline F32x16 to_float(I32x16 a) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i) r.q[i] = __builtin_convertvector(a.q[i], FloatQuarter);
  return r;
}
inline F32x16 load_half(const uint16_t* p) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    // The float with the same bits is 2^-112 of the value, also where the half is subnormal.
    const uint32_t magnitude = (p[i] & 0x7fffu) << 13;
    const bool finite = (p[i] & 0x7c00u) != 0x7c00u;
    const float value =
        finite ? from_bits(magnitude) * 0x1p112f : from_bits(magnitude | 0x7f800000u);
    lanes[i] = (p[i] & 0x8000u) != 0 ? -value : value;
  }
  return load(lanes);
}
inline void store_bytes(void* p, F32x16 a) {
  float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < kLanes; ++i) {
    static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(static_cast<int>(lanes[i]));
  }
}

struct Quads {
  uint8_t bytes[4 * kLanes];
};
struct QuadFactor {
  int8_t bytes[4];
};
inline QuadFactor broadcast_quad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline I32x16 dot_quads(I32x16 acc, const Quads& w, QuadFactor x) {
  for (int lane = 0; lane < kLanes; ++lane) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += w.bytes[4 * lane + i] * x.bytes[i];
    acc.q[lane / 4][lane % 4] += sum;
  }
  return acc;
}
inline Quads load_quads(const uint8_t* p) {
  Quads w;
  __builtin_memcpy(w.bytes, p, sizeof(w.bytes));
  return w;
}
inline void load_half_byte_quads(const uint8_t* p, Quads& low, Quads& high) {
  for (int i = 0; i < 4 * kLanes; ++i) {
    low.bytes[i] = p[i] & 0x0f;
    high.bytes[i] = p[i] >> 4;
  }
}

#endif

}  // namespace specdec::cpu::SPECDEC_ISA
