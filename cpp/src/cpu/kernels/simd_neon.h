// Operations of F32x16 for which NEON has instructions that the compiler does not find. Only for
// simd.h, which includes this file in its namespace.
#pragma once

// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return by_quarter([](FloatQuarter x, FloatQuarter y,
                       FloatQuarter z) { return (FloatQuarter)vfmaq_f32(z, x, y); },
                    a, b, c);
}
inline F32x16 load_bf16(const uint16_t* p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return {{(FloatQuarter)vshll_n_u16(vget_low_u16(low), 16),
           (FloatQuarter)vshll_n_u16(vget_high_u16(low), 16),
           (FloatQuarter)vshll_n_u16(vget_low_u16(high), 16),
           (FloatQuarter)vshll_n_u16(vget_high_u16(high), 16)}};
}
inline F32x16 load_i8(const int8_t* p) {
  const int8x16_t codes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
  return {{(FloatQuarter)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
           (FloatQuarter)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           (FloatQuarter)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
           (FloatQuarter)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline F32x16 double_lanes(FloatQuarter a, FloatQuarter b) {
  return {{(FloatQuarter)vzip1q_f32(a, a), (FloatQuarter)vzip2q_f32(a, a),
           (FloatQuarter)vzip1q_f32(b, b), (FloatQuarter)vzip2q_f32(b, b)}};
}
inline F32x16 double_low(F32x16 a) { return double_lanes(a.q[0], a.q[1]); }
inline F32x16 double_high(F32x16 a) { return double_lanes(a.q[2], a.q[3]); }
inline F32x16 sqrt(F32x16 a) {
  return by_quarter([](FloatQuarter x) { return (FloatQuarter)vsqrtq_f32(x); }, a);
}
inline F32x16 round_even(F32x16 a) {
  return by_quarter([](FloatQuarter x) { return (FloatQuarter)vrndnq_f32(x); }, a);
}
inline void store_bf16(uint16_t* p, F32x16 a) {
  for (int i = 0; i < kQuarters; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.q[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(a.q[i], a.q[i]);
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(is_number, rounded, quiet), 16));
  }
}

// Sums and maxima by a fixed tree: see simd.h.
inline float reduce_add(F32x16 a) {
  const float32x4_t four = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline FloatQuarter greater_of(FloatQuarter a, FloatQuarter b) { return a > b ? a : b; }
inline float reduce_max(F32x16 a) {
  const FloatQuarter four = greater_of(greater_of(a.q[0], a.q[2]), greater_of(a.q[1], a.q[3]));
  const float first = four[0] > four[2] ? four[0] : four[2];
  const float second = four[1] > four[3] ? four[1] : four[3];
  return first > second ? first : second;
}
