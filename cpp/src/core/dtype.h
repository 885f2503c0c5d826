// Element types of tensors in checkpoints, caches and activations.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "specdec/options.h"

namespace specdec {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3 };
template <>
inline constexpr auto kEnumNames<DType> =
    std::to_array<EnumName<DType>>({{DType::kF32, "float32"},
                                    {DType::kBF16, "bfloat16"},
                                    {DType::kF16, "float16"},
                                    {DType::kF64, "float64"},
                                    {DType::kI64, "int64"},
                                    {DType::kI32, "int32"},
                                    {DType::kI16, "int16"},
                                    {DType::kI8, "int8"},
                                    {DType::kU8, "uint8"},
                                    {DType::kBool, "bool"},
                                    {DType::kF8E4M3, "float8_e4m3fn"}});

size_t size_of(DType dtype);    // bytes of one element
bool is_floating(DType dtype);  // 16 bits or more, which need no scale

// The top 16 bits of an IEEE float32.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// IEEE half precision to float32, subnormals included, and back: to nearest, ties to even.
float half_to_float(uint16_t half_bits);
uint16_t float_to_half(float value);

// The 8-bit float of 4 exponent and 3 mantissa bits that has no infinities ("e4m3fn"): up to 448,
// subnormals included. 0x7f and 0xff are NaN.
float e4m3_to_float(uint8_t code);
inline constexpr float kLargestE4m3 = 448.0f;

// Widens `count` elements of a floating dtype. Throws InvalidArgument for another.
void to_floats(const void* from, DType dtype, size_t count, float* to);

}  // namespace specdec
