// How far apart two threads' data have to be, so that neither waits for the other's writes.
#pragma once

#include <cstddef>

namespace specdec {

#if defined(__aarch64__)
inline constexpr size_t kCacheLineBytes =
    128;  // of Apple's processors; others of this kind have 64
#else
inline constexpr size_t kCacheLineBytes = 64;
#endif

}  // namespace specdec
