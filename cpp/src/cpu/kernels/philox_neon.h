// Words of 32 bits on ARM64. Only for philox_simd.h, which includes it in its namespace.
#pragma once

struct U32x16 {
  uint32x4_t q[kQuarters];
};
// Applies op(quarter of a, quarter of others...) to each quarter; Result is made of words or of
// floats, as op returns.
template <class Result, class Op, class First, class... Others>
inline Result each_quarter(Op op, First a, Others... others) {
  return {{op(a.q[0], others.q[0]...), op(a.q[1], others.q[1]...), op(a.q[2], others.q[2]...),
           op(a.q[3], others.q[3]...)}};
}
inline U32x16 broadcast_u32(uint32_t x) {
  const uint32x4_t q = vdupq_n_u32(x);
  return {{q, q, q, q}};
}
inline U32x16 load_u32(const uint32_t* p) {
  return {{vld1q_u32(p), vld1q_u32(p + 4), vld1q_u32(p + 8), vld1q_u32(p + 12)}};
}
inline U32x16 operator+(U32x16 a, U32x16 b) {
  return each_quarter<U32x16>([](uint32x4_t x, uint32x4_t y) { return vaddq_u32(x, y); }, a, b);
}
inline U32x16 operator^(U32x16 a, U32x16 b) {
  return each_quarter<U32x16>([](uint32x4_t x, uint32x4_t y) { return veorq_u32(x, y); }, a, b);
}
inline U32x16 operator&(U32x16 a, U32x16 b) {
  return each_quarter<U32x16>([](uint32x4_t x, uint32x4_t y) { return vandq_u32(x, y); }, a, b);
}
inline U32x16 min(U32x16 a, U32x16 b) {
  return each_quarter<U32x16>([](uint32x4_t x, uint32x4_t y) { return vminq_u32(x, y); }, a, b);
}
inline U32x16 shift_right_signed_23(U32x16 a) {
  return each_quarter<U32x16>(
      [](uint32x4_t x) { return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(x), 23)); },
      a);
}
inline U32x16 bits_of(F32x16 a) {
  return each_quarter<U32x16>([](FloatQuarter x) { return (uint32x4_t)x; }, a);
}
inline F32x16 float_from_bits(U32x16 a) {
  return each_quarter<F32x16>([](uint32x4_t x) { return (FloatQuarter)x; }, a);
}
inline F32x16 float_of_unsigned(U32x16 a) {
  return each_quarter<F32x16>([](uint32x4_t x) { return (FloatQuarter)vcvtq_f32_u32(x); }, a);
}
inline F32x16 float_of_signed(U32x16 a) {
  return each_quarter<F32x16>(
      [](uint32x4_t x) { return (FloatQuarter)vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }, a);
}
inline F32x16 select_zero(U32x16 test, F32x16 if_zero, F32x16 otherwise) {
  return each_quarter<F32x16>(
      [](uint32x4_t word, FloatQuarter x, FloatQuarter y) {
        return (FloatQuarter)vbslq_f32(vceqzq_u32(word), x, y);
      },
      test, if_zero, otherwise);
}
inline uint32_t mask_at_least(F32x16 a, F32x16 b) {
  uint32x4_t mask = vdupq_n_u32(0);
  uint32x4_t bits = {1, 2, 4, 8};
  for (int i = 0; i < kQuarters; ++i) {
    mask = vorrq_u32(mask, vandq_u32(vcgeq_f32(a.q[i], b.q[i]), bits));
    bits = vshlq_n_u32(bits, 4);
  }
  return vaddvq_u32(mask);
}
inline void multiply_wide(U32x16 a, U32x16 b, U32x16* high, U32x16* low) {
  for (int i = 0; i < kQuarters; ++i) {
    const uint32x4_t first =
        vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a.q[i]), vget_low_u32(b.q[i])));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(a.q[i], b.q[i]));
    low->q[i] = vuzp1q_u32(first, second);
    high->q[i] = vuzp2q_u32(first, second);
  }
}
inline uint32x4_t low_pairs(uint32x4_t a, uint32x4_t b) {
  return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}
inline uint32x4_t high_pairs(uint32x4_t a, uint32x4_t b) {
  return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}
inline void transpose_quads(U32x16 (&w)[4]) {
  for (int i = 0; i < kQuarters; ++i) {
    const uint32x4_t even01 = vtrn1q_u32(w[0].q[i], w[1].q[i]);
    const uint32x4_t odd01 = vtrn2q_u32(w[0].q[i], w[1].q[i]);
    const uint32x4_t even23 = vtrn1q_u32(w[2].q[i], w[3].q[i]);
    const uint32x4_t odd23 = vtrn2q_u32(w[2].q[i], w[3].q[i]);
    w[0].q[i] = low_pairs(even01, even23);
    w[1].q[i] = low_pairs(odd01, odd23);
    w[2].q[i] = high_pairs(even01, even23);
    w[3].q[i] = high_pairs(odd01, odd23);
  }
}
