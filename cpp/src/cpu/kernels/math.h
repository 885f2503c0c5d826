// Elementary functions on sixteen lanes, the same polynomials on every instruction set.
#pragma once

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

// e^x within 2e-7 relative. Results below the smallest normal number are 0 (so e^-inf is exactly
// 0), results above the largest are infinity.
inline F32x16 exp(F32x16 x) {
  // e^x = 2^n e^r with |r| <= ln(2) / 2; ln(2) in two parts makes r exact to well below one ulp.
  const F32x16 n = round_even(x * broadcast(0x1.715476p+0f));
  F32x16 r = fma(n, broadcast(-0x1.62e400p-1f), x);
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  // e^r = 1 + r + r^2 Q(r), Q fitted for the least maximal relative error (3e-9).
  F32x16 q = broadcast(0x1.6a2434p-10f);
  q = fma(q, r, broadcast(0x1.1239e2p-7f));
  q = fma(q, r, broadcast(0x1.5558f2p-5f));
  q = fma(q, r, broadcast(0x1.555492p-3f));
  q = fma(q, r, broadcast(0x1.fffffcp-2f));
  const F32x16 power = fma(r * r, q, r) + broadcast(1.0f);
  F32x16 result = scale_by_power(power, n);
  result = select_less(x, broadcast(-0x1.5d589ep+6f), zero(), result);  // ln(2^-126)
  return select_less(broadcast(0x1.62e42ep+6f), x, broadcast(__builtin_inff()), result);
}

// 2^t for t <= 0, 1 at t = 0, 0 where it is below the smallest number. NaN stays NaN.
template <int kDegree>
inline F32x16 exp2_of(F32x16 t, const float (&coefficients)[kDegree]) {
  const F32x16 n = round_even(t);
  const F32x16 f = t - n;
  F32x16 power = broadcast(coefficients[kDegree - 1]);
#pragma GCC unroll 8
  for (int i = kDegree - 2; i >= 0; --i) power = fma(power, f, broadcast(coefficients[i]));
  return scale_down(fma(power, f, broadcast(1.0f)), n);
}
// Within 1e-7 relative.
inline F32x16 exp2_negative(F32x16 t) {
  return exp2_of(t, {0x1.62e430p-1f, 0x1.ebfbdcp-3f, 0x1.c6aee8p-5f, 0x1.3b2d4cp-7f,
                     0x1.5f3e54p-10f, 0x1.41fbbcp-13f});
}
// Within 1.1e-4 relative, a twentieth of what rounding the result to bfloat16 adds.
inline F32x16 exp2_negative_coarse(F32x16 t) {
  return exp2_of(t, {0x1.62f5fap-1f, 0x1.f00c4ep-3f, 0x1.c2a216p-5f});
}

// ln((1 + f) 2^exponent) for 1 + f in [1/sqrt(2), sqrt(2)).
inline F32x16 log_near_one(F32x16 f, F32x16 exponent) {
  // ln(1 + f) = 2 atanh(s) = f - s (f - s^2 (2/3 + 2/5 s^2 + ...)), s = f / (2 + f).
  const F32x16 s = f / (f + broadcast(2.0f));
  const F32x16 s2 = s * s;
  F32x16 series = broadcast(2.0f / 9.0f);
  series = fma(series, s2, broadcast(2.0f / 7.0f));
  series = fma(series, s2, broadcast(2.0f / 5.0f));
  series = fma(series, s2, broadcast(2.0f / 3.0f));
  const F32x16 correction = s * (f - s2 * series);
  // The low part of ln(2) first: the sum of the small terms is rounded against the large one once.
  const F32x16 low = fma(exponent, broadcast(0x1.7f7d1cp-20f), zero() - correction);
  return fma(exponent, broadcast(0x1.62e400p-1f), low + f);
}

// ln(x) for positive normal x, within 2e-7 relative.
inline F32x16 log(F32x16 x) {
  F32x16 mantissa = mantissa_of(x);
  F32x16 exponent = exponent_of(x);
  // Into [1/sqrt(2), sqrt(2)), so that the logarithm of numbers near 1 does not cancel.
  const F32x16 root = broadcast(0x1.6a09e6p+0f);
  exponent = select_less(mantissa, root, exponent, exponent + broadcast(1.0f));
  mantissa = select_less(mantissa, root, mantissa, mantissa * broadcast(0.5f));
  return log_near_one(mantissa - broadcast(1.0f), exponent);
}

// ln(1 + e^x), within 5e-7 relative; x itself above 20. NaN stays NaN.
inline F32x16 softplus(F32x16 x) {
  const F32x16 power = exp(zero() - abs(x));
  // ln(1 + power) is ln(2) more than that of half of it, which is nearer to 1 for large powers.
  const F32x16 root = broadcast(0x1.a8279ap-2f);
  const F32x16 half = broadcast(0.5f) * (power - broadcast(1.0f));
  const F32x16 log = log_near_one(select_less(power, root, power, half),
                                  select_less(power, root, zero(), broadcast(1.0f)));
  return max(zero(), x) + log;
}

// e^x - 1 - x for x <= 0, within 5e-7 relative.
inline F32x16 exp_minus_line(F32x16 x) {
  // In [-1, 0]: x^2 times a polynomial fitted for the least maximal relative error (2e-8).
  F32x16 p = broadcast(0x1.1f5370p-13f);
  p = fma(p, x, broadcast(0x1.5b046ep-10f));
  p = fma(p, x, broadcast(0x1.0ffb70p-7f));
  p = fma(p, x, broadcast(0x1.554514p-5f));
  p = fma(p, x, broadcast(0x1.5554fap-3f));
  p = fma(p, x, broadcast(0x1.000000p-1f));
  return select_less(x, broadcast(-1.0f), exp(x) - broadcast(1.0f) - x, x * x * p);
}

inline F32x16 sigmoid(F32x16 x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x)); }
inline F32x16 silu(F32x16 x) { return x / (broadcast(1.0f) + exp(zero() - x)); }

// limit * tanh(x / limit), within 2e-7 of the limit: tanh(x) = 2 sigmoid(2 x) - 1.
inline F32x16 soft_cap(F32x16 x, float limit) {
  const F32x16 twice = x * broadcast(2.0f / limit);
  return broadcast(limit) * (broadcast(2.0f) * sigmoid(twice) - broadcast(1.0f));
}

// erfc(x) for x >= 0: e^(-x^2) times a polynomial in 1 / (1 + c x), fitted for the least maximal
// relative error (1.4e-7) up to x = 10. Rounding x^2 adds 6e-8 x^2 of relative error.
inline F32x16 erfc_positive(F32x16 x) {
  const F32x16 t = broadcast(1.0f) / fma(x, broadcast(0.3275911f), broadcast(1.0f));
  F32x16 p = broadcast(-0.14064608f);
  p = fma(p, t, broadcast(0.49450515f));
  p = fma(p, t, broadcast(-0.40177003f));
  p = fma(p, t, broadcast(0.44901677f));
  p = fma(p, t, broadcast(0.027933335f));
  p = fma(p, t, broadcast(0.20503361f));
  p = fma(p, t, broadcast(0.18088617f));
  p = fma(p, t, broadcast(0.18504123f));
  return exp(zero() - x * x) * (p * t);
}
// Within 1e-6 absolute.
inline F32x16 erf(F32x16 x) {
  const F32x16 magnitude = broadcast(1.0f) - erfc_positive(abs(x));
  return select_less(x, zero(), zero() - magnitude, magnitude);
}

// x Phi(x), Phi the normal distribution function.
inline F32x16 gelu(F32x16 x) {
  const F32x16 tail = broadcast(0.5f) * erfc_positive(abs(x) * broadcast(0x1.6a09e6p-1f));
  return x * select_less(x, zero(), tail, broadcast(1.0f) - tail);
}
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
inline F32x16 gelu_tanh(F32x16 x) {
  const F32x16 cubic = fma(x * x, broadcast(0.044715f), broadcast(1.0f));
  return x * sigmoid(broadcast(1.5957691216f) * (x * cubic));
}

}  // namespace specdec::cpu::SPECDEC_ISA
