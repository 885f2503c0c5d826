// How products ask for the weights that they will use next. Only for the files of matrix products,
// each of which has its own copy.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear.h"

namespace specdec::cpu {
namespace {

inline constexpr int kLineBytes = 64;

// A single pass over weights that come from memory asks for each line so far ahead of its use. 4
// KiB into L1 are enough for one row, but not for 16 (Zen 5). Where rows take several passes over
// the same weights, each pass asks for a share of the next ones, into L1.
template <PrefetchInto kInto>
inline constexpr int64_t kAheadBytes = kInto == PrefetchInto::kL1 ? 8 << 10 : 16 << 10;

template <PrefetchInto kInto>
inline void prefetch_weights(const void* line) {
  __builtin_prefetch(line, 0, kInto == PrefetchInto::kL1 ? 3 : 2);
}

// Lines that are asked for into L1 take fill buffers, for which loads of the lines at hand wait. A
// Zen 4 has too few of them for products as fast as AVX-512's: 8 rows of int8 take 1.4 times as
// long as with lines asked for into L2 alone. A Zen 5 has enough, and loads from L2 cost it up to
// 1.4 times as much (16 rows of bfloat16). So these kernels come for both.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
inline constexpr bool kPrefetchesIntoL2 = true;
#else
inline constexpr bool kPrefetchesIntoL2 = false;
#endif

}  // namespace
}  // namespace specdec::cpu
