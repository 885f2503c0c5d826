// How kernels ask for what they will read next. Only for files that are compiled once per
// instruction set, each of which has its own copy.
//
// Lines that are asked for into L1 take fill buffers, for which loads of the lines at hand wait. A
// Zen 4 has few of them: 8 rows of int8 weights with AVX-512 take 1.4 times as long as with lines
// asked for into L2 alone, attention of one row 1.4 to 1.7 times with AVX-512 and with AVX2. On a
// Zen 5 the loads from L2 cost more: up to 1.4 times for 16 rows of bfloat16 weights, about 1.2
// times for attention of one row with AVX2. So there are kernels for both.
#pragma once

#include <cstdint>

#include "cpu/kernels/prefetch_into.h"

namespace specdec::cpu {
namespace {

inline constexpr int kLineBytes = 64;

template <PrefetchInto kInto>
inline void prefetch_line(const void* line) {
  __builtin_prefetch(line, 0, kInto == PrefetchInto::kL1 ? 3 : 2);
}

// A single pass over weights that come from memory asks for each line so far ahead of its use. 4
// KiB into L1 are enough for one row, but not for 16 (Zen 5). Where rows take several passes over
// the same weights, each pass asks for a share of the next ones, into L1.
template <PrefetchInto kInto>
inline constexpr int64_t kAheadBytes = kInto == PrefetchInto::kL1 ? 8 << 10 : 16 << 10;

// No Zen 4 runs kernels for AMX, and its products with AVX2 are 7% faster with lines in L1.
#if defined(__AMX_BF16__)
inline constexpr bool kAttentionIntoL2 = false, kProductsIntoL2 = false;
#elif defined(__AVX512BF16__)
inline constexpr bool kAttentionIntoL2 = true, kProductsIntoL2 = true;
#elif defined(__AVX2__)
inline constexpr bool kAttentionIntoL2 = true, kProductsIntoL2 = false;
#else
inline constexpr bool kAttentionIntoL2 = false, kProductsIntoL2 = false;
#endif

}  // namespace
}  // namespace specdec::cpu
