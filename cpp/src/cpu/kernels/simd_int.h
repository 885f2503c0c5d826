// Small integers sixteen lanes at a time, and float16: exact sums of products of bytes on every
// instruction set. The rules of simd.h hold.
//
// A quad is four neighbouring k of one output or row. Int8Dot, Int4Dot and SmallTableDot say how a
// group of k is summed, with weights of 8 and of 4 bits, and with values of a small table:
//   Weights  a quad of each of 16 outputs, of 64 unsigned bytes. In memory these hold one quad of 8
//            bits, or two of 4 bits: the first in the low halves of the bytes
//   Factor   one row's quad of signed bytes, for all lanes
//   Sums     of each lane; dot() adds  sum_i weights[lane][i] * factor[i], exactly
// A group's sums begin() and end() with the number that they start from.
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

struct BytesX64 {
  __m512i v;
};
inline BytesX64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
// The low halves of the bytes at p (quad 0), or the high ones (quad 1).
inline BytesX64 load_half_bytes(const uint8_t* p, int quad) {
  const __m512i bytes = _mm512_loadu_si512(p);
  const __m512i halves = quad == 0 ? bytes : _mm512_srli_epi16(bytes, 4);
  return {_mm512_and_si512(halves, _mm512_set1_epi8(0x0f))};
}
// The sixteen values at p plus `offset`, which makes them unsigned bytes.
inline BytesX64 load_table(const int8_t* p, int offset) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i offsets = _mm_set1_epi8(static_cast<char>(offset));
  return {_mm512_broadcast_i32x4(_mm_add_epi8(values, offsets))};
}
inline BytesX64 look_up(BytesX64 table, BytesX64 indices) {
  return {_mm512_shuffle_epi8(table.v, indices.v)};
}

#if defined(__AVX512VNNI__)

struct Int8Dot {
  using Code = int8_t;
  using Sums = I32x16;
  using Weights = BytesX64;
  struct Factor {
    __m512i v;
  };
  static Sums begin(int32_t start) { return broadcast_int(start); }
  static I32x16 end(Sums sums, int32_t) { return sums; }
  static Weights of(BytesX64 bytes) { return bytes; }
  static Factor factor(const int8_t* x) { return {_mm512_set1_epi32(word_at(x))}; }
  static Sums dot(Sums sums, Weights w, Factor x) {
    return {_mm512_dpbusd_epi32(sums.v, w.v, x.v)};
  }
};

using Int4Dot = Int8Dot;
using SmallTableDot = Int8Dot;

#else

// Keeps the order of the additions. The compiler would choose one that keeps all products until the
// end, for which there are not enough registers.
inline __m512i in_order(__m512i sum) {
  asm("" : "+v"(sum));
  return sum;
}

// Even and odd bytes widened to 16 bits, whose products in pairs a 32-bit lane holds exactly.
struct Int8Dot {
  using Code = int16_t;
  using Sums = I32x16;
  struct Weights {
    __m512i even, odd;
  };
  using Factor = Weights;
  static Sums begin(int32_t start) { return broadcast_int(start); }
  static I32x16 end(Sums sums, int32_t) { return sums; }
  static Weights of(BytesX64 bytes) {
    return {_mm512_and_si512(bytes.v, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(bytes.v, 8)};
  }
  static Factor factor(const int16_t* x) {
    return {_mm512_set1_epi32(word_at(x)), _mm512_set1_epi32(word_at(x + 2))};
  }
  static Sums dot(Sums sums, Weights w, Factor x) {
    const __m512i even = in_order(_mm512_add_epi32(sums.v, _mm512_madd_epi16(w.even, x.even)));
    return {in_order(_mm512_add_epi32(even, _mm512_madd_epi16(w.odd, x.odd)))};
  }
};

// A 16-bit lane sums the products of two k in each of a group's eight quads. The sums fit: codes
// are at most 15 and factors at least -128, so a sum is at least 8 * 2 * 15 * -128 = -30720.
struct Int4Dot {
  using Code = int8_t;
  struct Sums {
    __m512i v;
  };
  using Weights = BytesX64;
  struct Factor {
    __m512i v;
  };
  static Sums begin(int32_t) { return {_mm512_setzero_si512()}; }
  static I32x16 end(Sums sums, int32_t start) {
    const __m512i products = _mm512_madd_epi16(sums.v, _mm512_set1_epi16(1));
    return {_mm512_add_epi32(_mm512_set1_epi32(start), products)};
  }
  static Weights of(BytesX64 bytes) { return bytes; }
  static Factor factor(const int8_t* x) { return {_mm512_set1_epi32(word_at(x))}; }
  static Sums dot(Sums sums, Weights w, Factor x) {
    return {in_order(_mm512_add_epi16(sums.v, _mm512_maddubs_epi16(w.v, x.v)))};
  }
};

// The same where the start is a 16-bit lane's, twice, and the sum with it fits though the sums
// before may overflow.
struct SmallTableDot : Int4Dot {
  static Sums begin(int32_t start) { return {_mm512_set1_epi32(start)}; }
  static I32x16 end(Sums sums, int32_t) { return Int4Dot::end(sums, 0); }
};

#endif

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

struct BytesX64 {
  __m256i lo, hi;
};
inline BytesX64 load_bytes(const uint8_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline BytesX64 load_half_bytes(const uint8_t* p, int quad) {  // see above
  BytesX64 bytes = load_bytes(p);
  if (quad != 0) bytes = {_mm256_srli_epi16(bytes.lo, 4), _mm256_srli_epi16(bytes.hi, 4)};
  const __m256i mask = _mm256_set1_epi8(0x0f);
  return {_mm256_and_si256(bytes.lo, mask), _mm256_and_si256(bytes.hi, mask)};
}
inline BytesX64 load_table(const int8_t* p, int offset) {  // see above
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i offsets = _mm_set1_epi8(static_cast<char>(offset));
  const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(values, offsets));
  return {table, table};
}
inline BytesX64 look_up(BytesX64 table, BytesX64 indices) {
  return {_mm256_shuffle_epi8(table.lo, indices.lo), _mm256_shuffle_epi8(table.hi, indices.hi)};
}

#if defined(__AVXVNNI__)

struct Int8Dot {
  using Code = int8_t;
  using Sums = I32x16;
  using Weights = BytesX64;
  struct Factor {
    __m256i v;
  };
  static Sums begin(int32_t start) { return broadcast_int(start); }
  static I32x16 end(Sums sums, int32_t) { return sums; }
  static Weights of(BytesX64 bytes) { return bytes; }
  static Factor factor(const int8_t* x) { return {_mm256_set1_epi32(word_at(x))}; }
  static Sums dot(Sums sums, Weights w, Factor x) {
    return {_mm256_dpbusd_avx_epi32(sums.lo, w.lo, x.v),
            _mm256_dpbusd_avx_epi32(sums.hi, w.hi, x.v)};
  }
};

using Int4Dot = Int8Dot;
using SmallTableDot = Int8Dot;

#else

inline __m256i in_order(__m256i sum) {  // see above
  asm("" : "+x"(sum));
  return sum;
}

// Even and odd bytes widened to 16 bits, whose products in pairs a 32-bit lane holds exactly.
struct Int8Dot {
  using Code = int16_t;
  using Sums = I32x16;
  struct Weights {
    __m256i even[2], odd[2];
  };
  struct Factor {
    __m256i even, odd;
  };
  static Sums begin(int32_t start) { return broadcast_int(start); }
  static I32x16 end(Sums sums, int32_t) { return sums; }
  static Weights of(BytesX64 bytes) {
    const __m256i low = _mm256_set1_epi16(0xff);
    return {{_mm256_and_si256(bytes.lo, low), _mm256_and_si256(bytes.hi, low)},
            {_mm256_srli_epi16(bytes.lo, 8), _mm256_srli_epi16(bytes.hi, 8)}};
  }
  static Factor factor(const int16_t* x) {
    return {_mm256_set1_epi32(word_at(x)), _mm256_set1_epi32(word_at(x + 2))};
  }
  static __m256i dot(__m256i sums, __m256i even, __m256i odd, Factor x) {
    const __m256i sum = in_order(_mm256_add_epi32(sums, _mm256_madd_epi16(even, x.even)));
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(odd, x.odd)));
  }
  static Sums dot(Sums sums, const Weights& w, Factor x) {
    return {dot(sums.lo, w.even[0], w.odd[0], x), dot(sums.hi, w.even[1], w.odd[1], x)};
  }
};

// Sums in 16 bits, as with AVX-512.
struct Int4Dot {
  using Code = int8_t;
  struct Sums {
    __m256i lo, hi;
  };
  using Weights = BytesX64;
  struct Factor {
    __m256i v;
  };
  static Sums begin(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I32x16 end(Sums sums, int32_t start) {
    const __m256i from = _mm256_set1_epi32(start);
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(from, _mm256_madd_epi16(sums.lo, ones)),
            _mm256_add_epi32(from, _mm256_madd_epi16(sums.hi, ones))};
  }
  static Weights of(BytesX64 bytes) { return bytes; }
  static Factor factor(const int8_t* x) { return {_mm256_set1_epi32(word_at(x))}; }
  static Sums dot(Sums sums, Weights w, Factor x) {
    return {in_order(_mm256_add_epi16(sums.lo, _mm256_maddubs_epi16(w.lo, x.v))),
            in_order(_mm256_add_epi16(sums.hi, _mm256_maddubs_epi16(w.hi, x.v)))};
  }
};

// See above.
struct SmallTableDot : Int4Dot {
  static Sums begin(int32_t start) { return {_mm256_set1_epi32(start), _mm256_set1_epi32(start)}; }
  static I32x16 end(Sums sums, int32_t) { return Int4Dot::end(sums, 0); }
};

#endif

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

#if defined(SPECDEC_NEON)

inline float32x4_t load_half_quarter(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
inline F32x16 load_half(const uint16_t* p) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i) r.q[i] = (FloatQuarter)load_half_quarter(p + 4 * i);
  return r;
}
inline void store_bytes(void* p, F32x16 a) {
  int16x4_t words[kQuarters];
  for (int i = 0; i < kQuarters; ++i) words[i] = vmovn_s32(vcvtq_s32_f32(a.q[i]));
  vst1q_s8(static_cast<int8_t*>(p), vcombine_s8(vmovn_s16(vcombine_s16(words[0], words[1])),
                                                vmovn_s16(vcombine_s16(words[2], words[3]))));
}
// linear_int_neon.h computes the sums of products.
struct Int8Dot {
  using Code = int8_t;
};
using Int4Dot = Int8Dot;
using SmallTableDot = Int8Dot;

#else

inline F32x16 load_half(const uint16_t* p) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    // The float with the same bits is 2^-112 times the value, also where the half is subnormal.
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

struct BytesX64 {
  uint8_t bytes[4 * kLanes];
};
inline BytesX64 load_bytes(const uint8_t* p) {
  BytesX64 r;
  __builtin_memcpy(r.bytes, p, sizeof(r.bytes));
  return r;
}
inline BytesX64 load_half_bytes(const uint8_t* p, int quad) {
  BytesX64 r;
  for (int i = 0; i < 4 * kLanes; ++i) r.bytes[i] = p[i] >> 4 * quad & 0x0f;
  return r;
}
inline BytesX64 load_table(const int8_t* p, int offset) {
  BytesX64 r = {};
  for (int i = 0; i < 16; ++i) r.bytes[i] = static_cast<uint8_t>(p[i] + offset);
  return r;
}
inline BytesX64 look_up(const BytesX64& table, BytesX64 indices) {
  for (uint8_t& index : indices.bytes) index = table.bytes[index];
  return indices;
}

struct Int8Dot {
  using Code = int8_t;
  using Sums = I32x16;
  using Weights = BytesX64;
  struct Factor {
    int8_t bytes[4];
  };
  static Sums begin(int32_t start) { return broadcast_int(start); }
  static I32x16 end(const Sums& sums, int32_t) { return sums; }
  static Weights of(const BytesX64& bytes) { return bytes; }
  static Factor factor(const int8_t* x) { return {{x[0], x[1], x[2], x[3]}}; }
  static Sums dot(Sums sums, const Weights& w, Factor x) {
    for (int lane = 0; lane < kLanes; ++lane) {
      int sum = 0;
      for (int i = 0; i < 4; ++i) sum += w.bytes[4 * lane + i] * x.bytes[i];
      sums.q[lane / 4][lane % 4] += sum;
    }
    return sums;
  }
};

using Int4Dot = Int8Dot;
using SmallTableDot = Int8Dot;

#endif

#endif

// a * b + c, rounded once on every instruction set.
#if defined(__AVX512F__) || defined(__AVX2__) || defined(SPECDEC_NEON)
inline F32x16 fused(F32x16 a, F32x16 b, F32x16 c) { return fma(a, b, c); }
#else
inline F32x16 fused(F32x16 a, F32x16 b, F32x16 c) {
  for (int i = 0; i < kQuarters; ++i) {
    for (int lane = 0; lane < kLanes / kQuarters; ++lane) {
      c.q[i][lane] = __builtin_fmaf(a.q[i][lane], b.q[i][lane], c.q[i][lane]);
    }
  }
  return c;
}
#endif

}  // namespace specdec::cpu::SPECDEC_ISA
