#include "core/random_weights.h"

#include <array>
#include <cmath>

#include "core/philox.h"

namespace specdec {
namespace {

// The same for the same text on every machine (FNV-1a).
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

void store_float(float value, DType dtype, void* to, int64_t index) {
  if (dtype == DType::kF32) {
    static_cast<float*>(to)[index] = value;
  } else {
    static_cast<uint16_t*>(to)[index] =
        dtype == DType::kBF16 ? to_bfloat16(value).bits : float_to_half(value);
  }
}

}  // namespace

RandomSource random_source(std::string_view name, int64_t fan_in) {
  return {.key = hash_of(name), .unit = std::sqrt(3.0f / static_cast<float>(fan_in)) / 32768.0f};
}

void fill_random(const RandomSource& source, DType dtype, int64_t count, void* values) {
  const std::array key = {static_cast<uint32_t>(source.key),
                          static_cast<uint32_t>(source.key >> 32)};
  std::array<uint32_t, 4> drawn{};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t element = source.first + i;
    const auto lane = static_cast<int>(element % 8);
    const int64_t counter = element - lane;
    if (i == 0 || lane == 0) {
      drawn = philox4x32_10(
          {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
    }
    const auto bits = static_cast<int16_t>(drawn[lane / 2] >> (lane % 2 * 16));
    store_float(static_cast<float>(bits) * source.unit, dtype, values, i);
  }
}

}  // namespace specdec
