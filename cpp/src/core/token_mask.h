// Sets of tokens as bits: token t is bit t % 32 of word t / 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace specdec {

inline bool is_in(std::span<const uint32_t> mask, int32_t token) {
  const auto bit = static_cast<size_t>(token);
  return bit / 32 < mask.size() && (mask[bit / 32] >> (bit % 32) & 1u) != 0;
}

}  // namespace specdec
