// Random values, and values rounded to a dtype.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "backend/op_args.h"
#include "core/dtype.h"

namespace specdec::testing {

// `count` draws from the normal distribution with standard deviation `scale`.
template <std::uniform_random_bit_generator Random>
std::vector<float> random_values(Random& random, int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}
inline std::vector<float> random_values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  return random_values(random, count, scale);
}

// 1, 2, 3, ...
inline std::vector<float> counting(int count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// The bits of a value at bfloat16 or float16, and back.
inline uint16_t to_bits(float value, DType dtype) {
  return dtype == DType::kBF16 ? to_bfloat16(value).bits : float_to_half(value);
}
inline float from_bits(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}
inline std::vector<uint16_t> to_bits(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(to_bits(value, dtype));
  return bits;
}

// The nearest values that float32, bfloat16 or float16 can hold.
inline std::vector<float> rounded(std::vector<float> values, DType dtype) {
  if (dtype == DType::kF32) return values;
  for (float& value : values) value = from_bits(to_bits(value, dtype), dtype);
  return values;
}

// Largest relative error of rounding to bfloat16 or float16.
inline double rounding_unit(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

// `values` [rows, *] as a matrix of a checkpoint.
inline WeightView view_of(const std::vector<float>& values, int64_t rows) {
  return {.values = {values.data(), DType::kF32, {rows, std::ssize(values) / rows}}};
}

}  // namespace specdec::testing
