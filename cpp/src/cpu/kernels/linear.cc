#include "cpu/kernels/linear.h"

#include "cpu/kernels/linear_tiles.h"
#include "cpu/kernels/simd.h"

#if defined(__AMX_BF16__)
#include "cpu/kernels/linear_amx.h"
#endif

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// A dot policy says how a step of k is multiplied: Weights (16 outputs), Factor (one row's x, in
// all lanes) and the accumulation of their product. kAccumulators bounds rows times blocks of a
// tile by the registers there are.

struct F32Dot {
  using X = float;
  using Weights = F32x16;
  using Factor = F32x16;
  static constexpr int kStep = 1;
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 8;
  static constexpr int kAccumulators = 24;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int kMaxRows = 4;
  static constexpr int kAccumulators = 4;
#else
  static constexpr int kMaxRows = 2;
  static constexpr int kAccumulators = 2;
#endif
  static Weights weights(const float* p) { return load(p); }
  static Factor factor(const float* x) { return broadcast(*x); }
  static Factor last_factor(const float* x) { return broadcast(*x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return fma(w, x, sum); }
};

uint32_t load_pair(const uint16_t* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return pair;
}

#if defined(__AVX512BF16__)

struct Bf16Dot {
  using X = uint16_t;
  using Weights = __m512bh;
  using Factor = __m512bh;
  static constexpr int kStep = 2;
  static constexpr int kMaxRows = 8;
  static constexpr int kAccumulators = 24;
  static Factor pair_factor(uint32_t pair) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
  }
  static Weights weights(const uint16_t* p) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  static Factor factor(const uint16_t* x) { return pair_factor(load_pair(x)); }
  static Factor last_factor(const uint16_t* x) { return pair_factor(*x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return {_mm512_dpbf16_ps(sum.v, w, x)}; }
};

#else

// Even and odd k of sixteen pairs, widened to float32.
struct WidePairs {
  F32x16 even, odd;
};

#if defined(__AVX512F__)

WidePairs widen(__m512i pairs) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(pairs, high_half))}};
}
WidePairs load_pairs(const uint16_t* p) { return widen(_mm512_loadu_si512(p)); }
WidePairs broadcast_pair(uint32_t pair) { return widen(_mm512_set1_epi32(static_cast<int>(pair))); }

#elif defined(__AVX2__)

__m256 widen_even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
__m256 widen_odd(__m256i pairs) {
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, high_half));
}
WidePairs load_pairs(const uint16_t* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  return {{widen_even(lo), widen_even(hi)}, {widen_odd(lo), widen_odd(hi)}};
}
WidePairs broadcast_pair(uint32_t pair) {
  const __m256i pairs = _mm256_set1_epi32(static_cast<int>(pair));
  const __m256 even = widen_even(pairs);
  const __m256 odd = widen_odd(pairs);
  return {{even, even}, {odd, odd}};
}

#else

float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
WidePairs load_pairs(const uint16_t* p) {
  WidePairs out;
  uint32_t even[kLanes];
  uint32_t odd[kLanes];
  __builtin_memcpy(odd, p, sizeof(odd));
  for (int i = 0; i < kLanes; ++i) even[i] = odd[i] << 16;
  for (int i = 0; i < kLanes; ++i) odd[i] &= 0xffff0000u;
  __builtin_memcpy(&out.even, even, sizeof(even));
  __builtin_memcpy(&out.odd, odd, sizeof(odd));
  return out;
}
WidePairs broadcast_pair(uint32_t pair) {
  return {broadcast(float_of_bits(pair << 16)), broadcast(float_of_bits(pair & 0xffff0000u))};
}

#endif

struct Bf16Dot {
  using X = uint16_t;
  using Weights = WidePairs;
  using Factor = WidePairs;
  static constexpr int kStep = 2;
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 8;
  static constexpr int kAccumulators = 16;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int kMaxRows = 4;
  static constexpr int kAccumulators = 4;
#else
  static constexpr int kMaxRows = 2;
  static constexpr int kAccumulators = 2;
#endif
  static Weights weights(const uint16_t* p) { return load_pairs(p); }
  static Factor factor(const uint16_t* x) { return broadcast_pair(load_pair(x)); }
  static Factor last_factor(const uint16_t* x) { return broadcast_pair(*x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) {
    return fma(w.odd, x.odd, fma(w.even, x.even, sum));
  }
};

#endif

void linear_f32(const LinearTask& task) { run_tiles<F32Dot>(task); }

#if defined(__AMX_BF16__)
void linear_bf16(const LinearTask& task) {
  AmxTiles tiles;
  run_amx_tiles(task, tiles);
}
#else
void linear_bf16(const LinearTask& task) { run_tiles<Bf16Dot>(task); }
#endif

}  // namespace

LinearKernels linear_kernels();
LinearKernels linear_kernels() { return {linear_bf16, linear_f32}; }

}  // namespace specdec::cpu::SPECDEC_ISA
