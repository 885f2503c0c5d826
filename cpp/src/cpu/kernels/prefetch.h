// How products ask for the weights that they will use next. Only for the files of matrix products,
// each of which has its own copy.
#pragma once

#include <cstdint>

namespace specdec::cpu {
namespace {

inline constexpr int kLineBytes = 64;

// A single pass over weights that come from memory asks for each line kAheadBytes before its use;
// where rows take several passes over the same weights, each pass asks for a share of the next
// ones.
//
// With AVX-512, rows are multiplied so fast that lines asked for into the L1 cache would take all
// of its fill buffers, and loads of the lines at hand would wait for one (Zen 4: 8 rows of int8
// took 1.4 times as long). So lines go into the L2 cache alone, which has room for more of them.
// Where products take longer, loads from L2 would add to them (Zen 4, AVX2: 7%). 4 KiB into L1 are
// enough for one row, but not for 16 (Zen 5).
#if defined(__AVX512F__)
inline constexpr int64_t kAheadBytes = 16 << 10;
inline void prefetch_weights(const void* line) { __builtin_prefetch(line, 0, 2); }
#else
inline constexpr int64_t kAheadBytes = 8 << 10;
inline void prefetch_weights(const void* line) { __builtin_prefetch(line, 0, 3); }
#endif

}  // namespace
}  // namespace specdec::cpu
