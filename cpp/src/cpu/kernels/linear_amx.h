// The bfloat16 matrix product on AMX tiles, over a tile unit that is the real one or, in tests,
// plain loops. Each output is one tile element that takes k in steps of 32 whatever the number of
// rows, so a row's result does not depend on the other rows.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear.h"
#include "cpu/kernels/sum_slices.h"

namespace specdec::cpu {

// Tile registers: sums of two groups of up to 16 rows by two blocks, x of both groups, and weights
// of both blocks.
enum AmxTile : int {
  kSums00,
  kSums01,
  kSums10,
  kSums11,
  kRows0,
  kRows1,
  kWeights0,
  kWeights1,
};

inline constexpr int kAmxRows = 16;
inline constexpr int kAmxDepth = 32;    // k of one tile product
inline constexpr int kAmxOutputs = 16;  // of one block

#if defined(__AMX_BF16__) && defined(SPECDEC_ISA)
namespace SPECDEC_ISA {

// The tile unit of the calling thread; the destructor releases it. All statements clobber memory,
// because the compiler does not know what they read.
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // Configures the tiles of the second group for `rows1` rows (0: unused). Clears all tiles.
  void configure(int rows0, int rows1) {
    struct alignas(64) Config {
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config = {};
    static_assert(sizeof(Config) == 64);
    config.palette = 1;
    const int rows[] = {rows0, rows0, rows1, rows1, rows0, rows1, kAmxDepth / 2, kAmxDepth / 2};
    for (int tile = 0; tile <= kWeights1; ++tile) {
      if (rows[tile] == 0) continue;
      config.rows[tile] = static_cast<uint8_t>(rows[tile]);
      config.row_bytes[tile] = 64;
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  template <AmxTile kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <AmxTile kTile>
  void load(const void* data, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(data), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  // sums [rows, 16] += x [rows, 32] weights [16 pairs of k, 16, 2].
  template <AmxTile kSums, AmxTile kRows, AmxTile kWeights>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                 :
                 : "i"(kSums), "i"(kRows), "i"(kWeights));
  }
  template <AmxTile kTile>
  void store(float* data, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(data), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
};

}  // namespace SPECDEC_ISA
#endif

// Rows and blocks of one pass through the tile unit.
struct AmxSpan {
  int64_t row;
  int rows0;
  int rows1;
  int64_t block;
  int blocks;  // 1 or 2
};

// Multiplies one step of k: x points at the span's first row, weights at its first block.
template <class Tiles>
void amx_multiply_add(Tiles& tiles, const AmxSpan& span, const uint16_t* x, int64_t x_stride,
                      const uint16_t* weights, int64_t block_stride) {
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(uint16_t));
  tiles.template load<kRows0>(x, x_bytes);
  tiles.template load<kWeights0>(weights, 64);
  tiles.template multiply<kSums00, kRows0, kWeights0>();
  if (span.blocks == 2) {
    tiles.template load<kWeights1>(weights + block_stride, 64);
    tiles.template multiply<kSums01, kRows0, kWeights1>();
  }
  if (span.rows1 == 0) return;
  tiles.template load<kRows1>(x + kAmxRows * x_stride, x_bytes);
  tiles.template multiply<kSums10, kRows1, kWeights0>();
  if (span.blocks == 2) tiles.template multiply<kSums11, kRows1, kWeights1>();
}

template <class Tiles>
void amx_store_sums(Tiles& tiles, const AmxSpan& span, float* sums, int64_t stride) {
  const int64_t stride_bytes = stride * static_cast<int64_t>(sizeof(float));
  tiles.template store<kSums00>(sums, stride_bytes);
  if (span.blocks == 2) tiles.template store<kSums01>(sums + kAmxOutputs, stride_bytes);
  if (span.rows1 == 0) return;
  sums += kAmxRows * stride;
  tiles.template store<kSums10>(sums, stride_bytes);
  if (span.blocks == 2) tiles.template store<kSums11>(sums + kAmxOutputs, stride_bytes);
}

// Folds the sums that a complete step has left at `from`, as the step says.
template <class Tiles>
void amx_fold_sums(const SumSlice& slice, const TileSums& sums, SumsAt from, int64_t rows,
                   int64_t width) {
  const SumsAt to = sums.result(slice, width);
  if (to.data == from.data) return;
  for (int64_t row = 0; row < rows; ++row) {
    float* own = from.data + row * from.stride;
    for (int f = slice.num_folds - 1; f >= 0; --f) {
      const SumsAt left = sums.partial(slice.stack_index + f, width);
      for (int64_t i = 0; i < width; ++i) own[i] = left.data[row * left.stride + i] + own[i];
    }
    for (int64_t i = 0; i < width; ++i) to.data[row * to.stride + i] = own[i];
  }
}

template <class Tiles>
void run_amx_span(const LinearTask& task, const AmxSpan& span, Tiles& tiles) {
  const int64_t block_stride = task.padded_k * kAmxOutputs;
  const uint16_t* x = static_cast<const uint16_t*>(task.x) + span.row * task.x_stride;
  const uint16_t* weights = static_cast<const uint16_t*>(task.weights) + span.block * block_stride;
  const int64_t width = span.blocks * kAmxOutputs;
  TileSums sums = tile_sums(task, span.row, span.block, width);
  sums.partials = task.partials;
  SliceSpan slices = slice_span(task, 0, task.padded_k);
  do {
    tiles.template zero<kSums00>();
    if (span.blocks == 2) tiles.template zero<kSums01>();
    if (span.rows1 > 0) {
      tiles.template zero<kSums10>();
      if (span.blocks == 2) tiles.template zero<kSums11>();
    }
    for (int64_t k = slices.k; k < slices.slice->end; k += kAmxDepth) {
      amx_multiply_add(tiles, span, x + k, task.x_stride, weights + k * kAmxOutputs, block_stride);
    }
    const SumsAt to = sums.unfinished(*slices.slice, width);
    amx_store_sums(tiles, span, to.data, to.stride);
    amx_fold_sums<Tiles>(*slices.slice, sums, to, span.rows0 + span.rows1, width);
  } while (next_slice(slices));
}

template <class Tiles>
void run_amx_tiles(const LinearTask& task, Tiles& tiles) {
  int configured0 = 0;
  int configured1 = 0;
  for (int64_t block = 0; block < task.num_blocks; block += 2) {
    const int blocks = task.num_blocks - block >= 2 ? 2 : 1;
    for (int64_t row = 0; row < task.num_rows; row += 2 * kAmxRows) {
      const int rows = static_cast<int>(task.num_rows - row);
      const int rows0 = rows < kAmxRows ? rows : kAmxRows;
      const int rows1 = rows - rows0 < kAmxRows ? rows - rows0 : kAmxRows;
      if (rows0 != configured0 || rows1 != configured1) {
        tiles.configure(rows0, rows1);
        configured0 = rows0;
        configured1 = rows1;
      }
      run_amx_span(task, {row, rows0, rows1, block, blocks}, tiles);
    }
  }
}

}  // namespace specdec::cpu
