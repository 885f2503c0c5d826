// The two products of attention in registers: scores of queries with keys, and weighted sums of
// values. Only for files compiled once per ISA.
#pragma once

#include "cpu/kernels/attention.h"
#include "cpu/kernels/attention_words.h"

namespace specdec::cpu::SPECDEC_ISA {

// Register tiles: kTilePairs (row, head) pairs by kTileVectors vectors of positions or of values.
#if defined(__AVX512F__)
inline constexpr int kTilePairs = 6;
inline constexpr int kTileVectors = 4;
#elif defined(__AVX2__)
inline constexpr int kTilePairs = 4;
inline constexpr int kTileVectors = 1;
#else
inline constexpr int kTilePairs = 2;
inline constexpr int kTileVectors = 1;
#endif

inline constexpr int kLineBytes = 64;  // of the cache

// Which of the vectors' lines a tile prefetches: num_lines from first_line on.
struct PrefetchShare {
  int num_lines = 0;
  int first_line = 0;
};

// Tiles of a block share the prefetching: each of the first takes a line where there are tiles
// enough, else the first takes all lines.
inline PrefetchShare prefetch_share(int tile, int num_tiles) {
  if (tile >= kTileVectors) return {};
  if (num_tiles >= kTileVectors) return {1, tile};
  return tile == 0 ? PrefetchShare{kTileVectors, 0} : PrefetchShare{};
}

// --- scores: each a chain of dot products over the words of the query

template <class T>
struct ScoreTile {
  const typename T::Word* q[kTilePairs];
  float* out[kTilePairs];
  int num_words;  // of a query
  float scale;
};

// Reads kLines of the vectors' groups ahead, from vector first_line on.
template <class T, int P, int kLines>
__attribute__((noinline)) void score_tile(const ScoreTile<T>& tile,
                                          const typename T::Word* const* keys,
                                          const char* const* ahead, int first_line) {
  constexpr int V = kTileVectors;
  F32x16 acc[P][V];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[p][v] = zero();
  }
  for (int w = 0; w < tile.num_words; ++w) {
    decltype(T::load_word(keys[0])) k[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) k[v] = T::load_word(keys[v] + w * kLanes);
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) {
      __builtin_prefetch(ahead[first_line + line] + w * kLineBytes);
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const auto q = T::broadcast_word(tile.q[p] + w);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], q, k[v]);
    }
  }
  const F32x16 scale = broadcast(tile.scale);
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(tile.out[p] + v * kLanes, acc[p][v] * scale);
  }
}

// Scores of num_pairs pairs with groups [begin, end) of a block; `begin` is a whole number of
// vectors.
template <class T, int P>
void score_groups(int num_pairs, ScoreTile<T> tile, const typename T::Word* const* groups,
                  const char* const* ahead, int begin, int end, PrefetchShare share) {
  if (num_pairs == P) {
    for (int g = begin; g < end; g += kTileVectors) {
      if (share.num_lines == 0) {
        score_tile<T, P, 0>(tile, groups + g, ahead + g, 0);
      } else if (share.num_lines == 1) {
        score_tile<T, P, 1>(tile, groups + g, ahead + g, share.first_line);
      } else {
        score_tile<T, P, kTileVectors>(tile, groups + g, ahead + g, 0);
      }
      for (int p = 0; p < P; ++p) tile.out[p] += kTileVectors * kLanes;
    }
  } else if constexpr (P > 1) {
    score_groups<T, P - 1>(num_pairs, tile, groups, ahead, begin, end, share);
  }
}

// --- values: each element of the result a chain of dot products over the words of weights

template <class T>
struct ValueTile {
  const typename T::Word* weights[kTilePairs];
  float* acc[kTilePairs];
  int head_dim;
};

// Groups [begin, end) of a block, `column` of their values on.
template <class T, int P, int V, int kLines>
__attribute__((noinline)) void value_tile(const ValueTile<T>& tile,
                                          const typename T::Word* const* groups,
                                          const char* const* groups_ahead, int begin, int end,
                                          int column, int first_line) {
  using Word = typename T::Word;
  constexpr int kGroupWords = kGroupTokens / T::kPerWord;
  F32x16 acc[P][V];
  const Word* weights[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    weights[p] = tile.weights[p];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[p][v] = load(tile.acc[p] + column + v * kLanes);
  }
  for (int g = begin; g < end; ++g) {
    const Word* row = groups[g] + column;
    const char* ahead = groups_ahead[g] + (column + first_line * kLanes) * sizeof(Word);
    for (int i = 0; i < kGroupWords; ++i) {
      decltype(T::load_word(row)) value[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) value[v] = T::load_word(row + v * kLanes);
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) __builtin_prefetch(ahead + line * kLineBytes);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const auto weight = T::broadcast_word(weights[p] + i);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], weight, value[v]);
      }
      row += tile.head_dim;
      ahead += tile.head_dim * sizeof(Word);
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) weights[p] += kGroupWords;
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(tile.acc[p] + column + v * kLanes, acc[p][v]);
  }
}

// Adds the weighted values of groups [begin, end) of a block to the accumulators of num_pairs
// pairs, [num_columns] each.
template <class T, int P>
void add_values(int num_pairs, const ValueTile<T>& tile, const typename T::Word* const* groups,
                const char* const* ahead, int begin, int end, int num_columns,
                PrefetchShare share) {
  if (num_pairs == P) {
    constexpr int V = kTileVectors;
    int column = 0;
    for (; column + V * kLanes <= num_columns; column += V * kLanes) {
      if (share.num_lines == 0) {
        value_tile<T, P, V, 0>(tile, groups, ahead, begin, end, column, 0);
      } else if (share.num_lines == 1) {
        value_tile<T, P, V, 1>(tile, groups, ahead, begin, end, column, share.first_line);
      } else {
        value_tile<T, P, V, V>(tile, groups, ahead, begin, end, column, 0);
      }
    }
    for (; column < num_columns; column += kLanes) {
      if (share.num_lines == 0) {
        value_tile<T, P, 1, 0>(tile, groups, ahead, begin, end, column, 0);
      } else {
        value_tile<T, P, 1, 1>(tile, groups, ahead, begin, end, column, 0);
      }
    }
  } else if constexpr (P > 1) {
    add_values<T, P - 1>(num_pairs, tile, groups, ahead, begin, end, num_columns, share);
  }
}

}  // namespace specdec::cpu::SPECDEC_ISA
