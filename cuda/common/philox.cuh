// Random numbers on the device: Philox words at the counters that the CPU uses, and the Gumbel
// noise and coins made from them. Bit for bit the CPU's (cpu/kernels/philox_simd.h,
// speculation/verification.cc).
//
// tests/cuda/common/noise_test.cc compares the noise with a closed formula in double precision and
// the coins with step_uniforms.
#pragma once

#include <cstdint>

#include "core/step_rules.h"
#include "cuda/common/exact_math.cuh"
#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

struct PhiloxWords {
  uint32_t w0, w1, w2, w3;
};

// Philox4x32-10, see core/philox.h.
__device__ __forceinline__ PhiloxWords philox4x32_10(PhiloxWords c, uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c.w0;
    const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * c.w2;
    c = {static_cast<uint32_t>(b >> 32) ^ c.w1 ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c.w3 ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The source of a row's noise: token t takes word t % 4 of counter (position, t / 4, stream).
struct NoiseSource {
  uint64_t seed;
  int64_t position;
  uint32_t stream;

  // The words of tokens 4 * quad to 4 * quad + 3.
  __device__ __forceinline__ PhiloxWords words(uint32_t quad) const {
    const auto bits = static_cast<uint64_t>(position);
    return philox4x32_10(
        {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), quad, stream},
        static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  __device__ __forceinline__ uint32_t word(int32_t token) const {
    const PhiloxWords four = words(static_cast<uint32_t>(token) / 4);
    const uint32_t word = static_cast<uint32_t>(token) % 4;
    return word < 2 ? (word == 0 ? four.w0 : four.w1) : (word == 2 ? four.w2 : four.w3);
  }
};

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1].
__device__ __forceinline__ float log1p_reduced(float f) {
  float p = -0.0763565153f;
  p = fmaf(p, f, 0.127633259f);
  p = fmaf(p, f, -0.131605834f);
  p = fmaf(p, f, 0.142015532f);
  p = fmaf(p, f, -0.166232988f);
  p = fmaf(p, f, 0.200012341f);
  p = fmaf(p, f, -0.250008225f);
  p = fmaf(p, f, 0.333333313f);
  const float square = f * f;
  return fmaf(square * f, p, fmaf(square, -0.5f, f));
}

// log(x) for positive normal x. For x in [sqrt(1/2), sqrt(2)) the result is made from x_minus_1,
// which the caller may know more precisely than x can tell.
__device__ __forceinline__ float log_positive(float x, float x_minus_1) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3u;
  const uint32_t above = __float_as_uint(x) - kSqrtHalf;
  const int exponent = static_cast<int>(above) >> 23;
  const float mantissa = __uint_as_float((above & 0x007FFFFFu) + kSqrtHalf);
  const float f = exponent == 0 ? x_minus_1 : mantissa - 1.0f;
  const float e = static_cast<float>(exponent);
  return fmaf(e, 0.693359375f, fmaf(e, -2.12194440e-4f, log1p_reduced(f)));
}

// Standard Gumbel noise of a uniformly random word: -log(-log(1 - v)), v = (word + 1/2) / 2^32,
// with 1 - v made from the complement of the word so that neither end loses precision. Finite:
// between -3.13 and 22.88.
__device__ __forceinline__ float gumbel_noise(uint32_t word) {
  constexpr float kScale = 0x1p-32f;
  const float v = (static_cast<float>(word) + 0.5f) * kScale;
  const float one_minus_v = (static_cast<float>(~word) + 0.5f) * kScale;
  const float exponential = -log_positive(one_minus_v, -v);
  return -log_positive(exponential, exponential - 1.0f);
}

// step_uniforms of speculation/verification.h, in (0, 1): index 0 for the final draw, i + 1 for the
// coin of attempt i.
__device__ __forceinline__ double step_uniform(uint64_t seed, int64_t root_position, int depth,
                                               int index) {
  const auto position = static_cast<uint64_t>(root_position);
  const PhiloxWords words =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     uniform_counter(depth, index), kVerificationStream},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uniform_of(static_cast<uint64_t>(words.w1) << 32 | words.w0);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
