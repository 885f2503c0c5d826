// Conversions between the storage types and float, alike on a GPU and emulated.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"

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

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
