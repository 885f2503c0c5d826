// FNV-1a, a hash of bytes that can be continued.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace specdec {

inline constexpr uint64_t kFnv1aOfNothing = 0xcbf29ce484222325u;

// The hash of some bytes followed by `bytes`; `hash` is that of the bytes before.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = kFnv1aOfNothing) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

inline uint64_t fnv1a(std::span<const int32_t> tokens) {
  return fnv1a(std::string_view(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()));
}

}  // namespace specdec
