// Sixteen pairs of bfloat16 and their dot products on every instruction set. Only for files
// compiled once per ISA; see simd.h.
#pragma once

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

// The first of a pair lies in the low half of a 32-bit word; pairs are read from any address.
// dot_bf16 adds a.second * b.second, then a.first * b.first to each lane, each rounded once: the
// order of vdpbf16ps.
#if defined(__AVX512BF16__)
#define SPECDEC_MULTIPLIES_BF16_PAIRS 1  // by an instruction

struct Bf16Pairs {
  __m512i v;
};
inline Bf16Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Bf16Pairs broadcast_pair(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  return {_mm512_set1_epi32(word)};
}
inline F32x16 dot_bf16(F32x16 acc, Bf16Pairs a, Bf16Pairs b) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

#elif defined(SPECDEC_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define SPECDEC_MULTIPLIES_BF16_PAIRS 1

// bfdot rounds differently: it adds the two products of a pair, then adds that sum, rounding each
// to odd, and flushes subnormal numbers to 0.
struct Bf16Pairs {
  bfloat16x8_t q[kQuarters];
};
inline Bf16Pairs load_pairs(const void* p) {
  const uint16_t* from = static_cast<const uint16_t*>(p);
  return {{vreinterpretq_bf16_u16(vld1q_u16(from)), vreinterpretq_bf16_u16(vld1q_u16(from + 8)),
           vreinterpretq_bf16_u16(vld1q_u16(from + 16)),
           vreinterpretq_bf16_u16(vld1q_u16(from + 24))}};
}
inline Bf16Pairs broadcast_pair(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  // g++ 12 would use a float16 instruction for a vector of constants.
  if (__builtin_constant_p(word)) asm("" : "+r"(word));
  const bfloat16x8_t pair = vreinterpretq_bf16_u32(vdupq_n_u32(word));
  return {{pair, pair, pair, pair}};
}
inline F32x16 dot_bf16(F32x16 acc, Bf16Pairs a, Bf16Pairs b) {
  F32x16 r;
  for (int i = 0; i < kQuarters; ++i) {
    r.q[i] = (FloatQuarter)vbfdotq_f32(acc.q[i], a.q[i], b.q[i]);
  }
  return r;
}

#else

struct Bf16Pairs {
  F32x16 first, second;
};

#if defined(__AVX512F__)
inline Bf16Pairs split_pairs(__m512i words) {
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))}};
}
inline Bf16Pairs load_pairs(const void* p) { return split_pairs(_mm512_loadu_si512(p)); }
inline Bf16Pairs broadcast_pair(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  return split_pairs(_mm512_set1_epi32(word));
}
#elif defined(__AVX2__)
inline Bf16Pairs split_pairs(__m256i lo, __m256i hi) {
  const __m256i top = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(lo, top)),
           _mm256_castsi256_ps(_mm256_and_si256(hi, top))}};
}
inline Bf16Pairs load_pairs(const void* p) {
  const __m256i* halves = static_cast<const __m256i*>(p);
  return split_pairs(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1));
}
inline Bf16Pairs broadcast_pair(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  return split_pairs(_mm256_set1_epi32(word), _mm256_set1_epi32(word));
}
#else
inline Bf16Pairs load_pairs(const void* p) {
  WordQuarter words[kQuarters];
  __builtin_memcpy(words, p, sizeof(words));
  Bf16Pairs r;
  for (int i = 0; i < kQuarters; ++i) {
    r.first.q[i] = (FloatQuarter)(words[i] << 16);
    r.second.q[i] = (FloatQuarter)(words[i] & 0xffff0000u);
  }
  return r;
}
inline Bf16Pairs broadcast_pair(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return {broadcast(from_bits(word << 16)), broadcast(from_bits(word & 0xffff0000u))};
}
#endif

// The first or second of each pair at p, widened.
inline F32x16 load_first(const void* p) { return load_pairs(p).first; }
inline F32x16 load_second(const void* p) { return load_pairs(p).second; }
inline F32x16 dot_bf16(F32x16 acc, Bf16Pairs a, Bf16Pairs b) {
  return fma(a.first, b.first, fma(a.second, b.second, acc));
}

#endif

}  // namespace specdec::cpu::SPECDEC_ISA
