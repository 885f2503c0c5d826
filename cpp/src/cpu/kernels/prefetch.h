// How kernels prefetch. Only for files that are compiled once per instruction set, each of which
// has its own copy.
//
// Prefetches into L1 take fill buffers, and loads of the current lines wait for a free one. A Zen 4
// has few: 8 rows of int8 weights with AVX-512 take 1.4 times as long as with prefetches into L2
// only, attention of one row 1.4 to 1.7 times with AVX-512 and with AVX2. On a Zen 5 the loads from
// L2 cost more: up to 1.4 times for 16 rows of bfloat16 weights, about 1.2 times for attention of
// one row with AVX2. So both variants of the kernels are compiled.
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

// Distance in bytes between a line's prefetch and its use, in a single pass over weights from
// memory. 4 KiB into L1 are enough for one row, but not for 16 (Zen 5). When rows take several
// passes over the same weights, each pass prefetches a share of the next weights, into L1.
template <PrefetchInto kInto>
inline constexpr int64_t kAheadBytes = kInto == PrefetchInto::kL1 ? 8 << 10 : 16 << 10;

// No Zen 4 runs the AMX kernels, and its AVX2 products are 7% faster with lines in L1.
#if defined(__AMX_BF16__)
inline constexpr bool kAttentionIntoL2 = false, kProjectionsIntoL2 = false;
#elif defined(__AVX512BF16__)
inline constexpr bool kAttentionIntoL2 = true, kProjectionsIntoL2 = true;
#elif defined(__AVX2__)
inline constexpr bool kAttentionIntoL2 = true, kProjectionsIntoL2 = false;
#else
inline constexpr bool kAttentionIntoL2 = false, kProjectionsIntoL2 = false;
#endif

}  // namespace
}  // namespace specdec::cpu
