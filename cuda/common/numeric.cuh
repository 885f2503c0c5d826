// Conversions between the storage types and float, with the same bits on a GPU and in the
// emulation.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

__device__ __forceinline__ float to_float(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

// The two elements of a register, the lower half first.
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t pair);

template <>
__device__ __forceinline__ float2 unpack<Bf16>(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

#ifdef SPECDEC_EMULATED
inline float to_float(Half value) { return specdec::half_to_float(value.bits); }
template <class T>
T from_float(float value);
template <>
inline Bf16 from_float<Bf16>(float value) {
  return {specdec::to_bfloat16(value).bits};
}
template <>
inline Half from_float<Half>(float value) {
  return {specdec::float_to_half(value)};
}
#else
__device__ __forceinline__ float to_float(Half value) {
  return __half2float(__ushort_as_half(value.bits));
}
// Round to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ __forceinline__ Half from_float<Half>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}
#endif

template <>
__device__ __forceinline__ float2 unpack<Half>(uint32_t pair) {
  return make_float2(to_float(Half{static_cast<uint16_t>(pair)}),
                     to_float(Half{static_cast<uint16_t>(pair >> 16)}));
}

// The 8-bit floats (e4m3) of core/dtype.h, without NaN. to_e4m3 rounds to nearest, ties to even,
// and clamps to the largest number, 448.
__device__ __forceinline__ float from_e4m3(uint8_t code) {
  // The same bits read as a Half are 2^8 times smaller, subnormals too.
  return 256.0f * to_float(Half{static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7)});
}
__device__ __forceinline__ uint8_t to_e4m3(float value) {
  const uint32_t sign = __float_as_uint(value) >> 24 & 0x80u;
  const float magnitude = fminf(fabsf(value), 448.0f);
  // Subnormals are multiples of 2^-9. Where rounding gives 8 of them, the code is that of the
  // smallest normal number, as it should be.
  if (magnitude < 0x1p-6f) return sign | static_cast<uint32_t>(rintf(magnitude * 0x1p9f));
  const uint32_t bits = __float_as_uint(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + (bits >> 20 & 1u);
  return sign | ((rounded >> 20) - (120u << 3));
}

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
