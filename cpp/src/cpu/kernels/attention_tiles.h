// Sums in registers of up to kTilePairs (row, head) pairs at once: scores of some positions, and
// weighted values of some columns. Only for files compiled once per ISA.
#pragma once

#include "cpu/kernels/attention_groups.h"
#include "cpu/kernels/attention_rows.h"
#include "cpu/kernels/math.h"
#include "cpu/kernels/prefetch.h"

namespace specdec::cpu::SPECDEC_ISA {

template <class T, PrefetchInto kInto>
struct RegisterTiles {
  using Word = typename T::Word;
  static constexpr int kGroupWords = kGroupTokens / T::kPerWord;  // rows of words of a value group

  // --- scores: each a chain of dot products over the words of the query ---

  struct ScoreTile {
    const Word* q[kTilePairs];
    float* out[kTilePairs];
    int num_words;  // of a query
    float factor;   // of the scores
  };

  // Prefetches kLines of the vectors' groups, from vector first_line on.
  template <int P, int kLines>
  __attribute__((noinline)) static void score_tile(const ScoreTile& tile, const Word* const* keys,
                                                   const char* const* ahead, int first_line) {
    constexpr int V = kTileVectors;
    const int num_words = tile.num_words;
    F32x16 acc[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = zero();
    }
    for (int w = 0; w < num_words; ++w) {
      decltype(T::load_word(keys[0])) k[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) k[v] = T::load_word(keys[v] + w * kLanes);
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        prefetch_line<kInto>(ahead[first_line + line] + w * kLineBytes);
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const auto q = T::broadcast_word(tile.q[p] + w);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], q, k[v]);
      }
    }
    const F32x16 scale = broadcast(tile.factor);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(tile.out[p] + v * kLanes, acc[p][v] * scale);
    }
  }

  // --- values: each element of the result a chain of dot products over the words of weights ---

  struct ValueTile {
    const Word* weights[kTilePairs];
    float* acc[kTilePairs];
    int head_dim;
  };

  template <int P, int V, int kLines>
  __attribute__((noinline)) static void value_tile(const ValueTile& tile, const Block<Word>& block,
                                                   int begin, int end, int column, int first_line) {
    const int head_dim = tile.head_dim;
    F32x16 acc[P][V];
    const Word* weights[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      weights[p] = tile.weights[p];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = load(tile.acc[p] + column + v * kLanes);
    }
    for (int g = begin; g < end; ++g) {
      const Word* row = block.groups[g] + column;
      const char* ahead = block.ahead[g] + (column + first_line * kLanes) * sizeof(Word);
      for (int i = 0; i < kGroupWords; ++i) {
        decltype(T::load_word(row)) value[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) value[v] = T::load_word(row + v * kLanes);
#pragma GCC unroll 8
        for (int line = 0; line < kLines; ++line) prefetch_line<kInto>(ahead + line * kLineBytes);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const auto weight = T::broadcast_word(weights[p] + i);
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], weight, value[v]);
        }
        row += head_dim;
        ahead += head_dim * sizeof(Word);
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
};

}  // namespace specdec::cpu::SPECDEC_ISA
