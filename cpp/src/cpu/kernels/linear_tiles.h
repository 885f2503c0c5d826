// Loops of the matrix product around a register tile of rows x blocks of 16 outputs. Only for
// kernels/linear.cc.
//
// Each output is one accumulator that takes the k of a step in order. Splitting k elsewhere only
// moves the accumulator through memory, exactly, so neither the tile's shape nor any blocking
// changes the result.
//
// A few rows (Dot::kOnePassRows) take one pass over the weights, block after block: the thread
// reads one stream from end to end, which is what memory does fastest. More rows take several
// passes over a group of blocks that stays in the L2 cache meanwhile.
#pragma once

#include "cpu/kernels/linear.h"
#include "cpu/kernels/prefetch.h"
#include "cpu/kernels/row_pointers.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/sum_slices.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

constexpr int kMaxTileRows = 16;
constexpr int kMaxTileBlocks = kMaxCellBlocks;

// Pointers of a tile: x at its first row and k, packed weights at its first block and k.
template <class X, class W>
struct TileSpan {
  const X* x;
  int64_t x_stride;  // elements between rows
  const W* weights;
  int64_t block_stride;  // elements between blocks
  SliceSpan slices;
  // Each step of k prefetches one later line of memory.
  const char* ahead;
  int64_t ahead_stride;  // bytes
};

template <class Dot>
using SpanOf = TileSpan<typename Dot::X, typename Dot::W>;

template <int kRows, int kBlocks>
using TileAcc = F32x16[kRows][kBlocks];

template <int kRows, int kBlocks>
inline void load_tile(SumsAt from, TileAcc<kRows, kBlocks>& acc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int b = 0; b < kBlocks; ++b) acc[r][b] = load(from.data + r * from.stride + b * kLanes);
  }
}

// Folds a tile kFolds times with the sums at `left` and the ones before, and stores it at `to`.
// Without the asm the compiler would compute the addresses of all rows first and keep them on the
// stack.
template <int kFolds, int kRows, int kBlocks>
inline void store_tile(const TileAcc<kRows, kBlocks>& acc, SumsAt left, SumsAt to) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int b = 0; b < kBlocks; ++b) {
      F32x16 sum = acc[r][b];
#pragma GCC unroll 3
      for (int f = 0; f < kFolds; ++f) sum = load(left.data + (b - f * kBlocks) * kLanes) + sum;
      store(to.data + b * kLanes, sum);
    }
    left.data += left.stride;
    to.data += to.stride;
    asm("" : "+r"(left.data), "+r"(to.data));
  }
}

// Stores the sums of a complete step. There is one loop per number of folds, because processors
// predict which store a load depends on by the load's address in the program.
template <int kRows, int kBlocks>
inline void fold_tile(const SumSlice& slice, const TileSums& sums,
                      const TileAcc<kRows, kBlocks>& acc) {
  constexpr int64_t kWidth = kBlocks * kLanes;
  const SumsAt to = sums.result(slice, kWidth);
  const SumsAt left = sums.partial(slice.stack_index + slice.num_folds - 1, kWidth);
  switch (slice.num_folds) {
    case 0:
      return store_tile<0, kRows, kBlocks>(acc, to, to);
    case 1:
      return store_tile<1, kRows, kBlocks>(acc, left, to);
    case 2:
      return store_tile<2, kRows, kBlocks>(acc, left, to);
    default:
      return store_tile<3, kRows, kBlocks>(acc, left, to);
  }
}

// Sums the span's k step by step.
template <class Dot, int kRows, int kBlocks>
void run_tile(const SpanOf<Dot>& span, const TileSums& tile_sums) {
  using X = typename Dot::X;
  using W = typename Dot::W;
  static_assert(kLanes * Dot::kDotDepth * sizeof(W) == kLineBytes);
  constexpr int64_t kWidth = kBlocks * kLanes;
  constexpr int kMostSums = Dot::kPassRows * Dot::kPassBlocks;
  constexpr bool kIsLarge = kRows * kBlocks >= (kMostSums < 8 ? kMostSums : 8);
  constexpr int kUnroll = kIsLarge ? Dot::kUnroll : 1;
  RowPointers<X> x(span.x, span.x_stride);
  const W* weights = span.weights;
  const int64_t block_stride = span.block_stride;
  const char* ahead = span.ahead;
  const int64_t ahead_stride = span.ahead_stride;
  SliceSpan slices = span.slices;
  TileSums sums = tile_sums;
  do {
    SumSlice slice = *slices.slice;
    int64_t k = k_of_slice(slices);
    TileAcc<kRows, kBlocks> acc;
    if (slices.starts) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int b = 0; b < kBlocks; ++b) acc[r][b] = zero();
      }
    } else {
      load_tile<kRows, kBlocks>(sums.unfinished(slice, kWidth), acc);
    }
    // The loop of a large tile takes all registers. The compiler would keep the other variables in
    // vector registers, where reading a value waits for the products before it.
    if constexpr (kIsLarge) asm("" : "+r"(k), "+m"(slices), "+m"(sums), "+m"(slice));
    for (; k > 0; k -= kUnroll * Dot::kDotDepth) {
#pragma GCC unroll 4
      for (int i = 0; i < kUnroll; ++i) {
        prefetch_line<Dot::kPrefetchInto>(ahead);
#pragma GCC unroll 2
        for (int part = 0; part < Dot::kParts; ++part) {
          typename Dot::Weights w[kBlocks];
#pragma GCC unroll 3
          for (int b = 0; b < kBlocks; ++b) w[b] = Dot::weights(weights + b * block_stride, part);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const typename Dot::Factor factor = Dot::factor(x.row(r), part);
#pragma GCC unroll 3
            for (int b = 0; b < kBlocks; ++b) acc[r][b] = Dot::dot(acc[r][b], w[b], factor);
          }
        }
        weights += kLanes * Dot::kDotDepth;
        ahead += ahead_stride;
        x.advance(Dot::kDotDepth);
        if constexpr (kIsLarge) asm("" : "+r"(weights), "+r"(ahead));
      }
    }
    if constexpr (kIsLarge) asm("" : "+m"(slices), "+m"(sums), "+m"(slice));
    if (slice.end > slices.end) {
      const SumsAt to = sums.unfinished(slice, kWidth);
      store_tile<0, kRows, kBlocks>(acc, to, to);
      return;
    }
    fold_tile<kRows, kBlocks>(slice, sums, acc);
  } while (next_slice(slices));
}

template <class Dot>
using TileFunction = void (*)(const SpanOf<Dot>&, const TileSums&);

// Null for tiles that the loops below never use: a single pass has one block, several passes have
// few rows.
template <class Dot, int kRows, int kBlocks>
constexpr TileFunction<Dot> tile_or_null() {
  constexpr int kMost = kBlocks == 1 ? Dot::kOnePassRows : Dot::kPassRows;
  if constexpr (kRows <= kMost && kBlocks <= Dot::kPassBlocks) {
    return run_tile<Dot, kRows, kBlocks>;
  } else {
    return nullptr;
  }
}

template <class Dot, int kRows>
struct TilesOfRows {
  static constexpr TileFunction<Dot> kTiles[kMaxTileBlocks] = {
      tile_or_null<Dot, kRows, 1>(), tile_or_null<Dot, kRows, 2>(), tile_or_null<Dot, kRows, 3>()};
};

template <class Dot>
TileFunction<Dot> tile_function(int rows, int blocks) {
  static_assert(Dot::kOnePassRows <= kMaxTileRows && Dot::kPassRows <= Dot::kOnePassRows);
  static_assert(Dot::kPassBlocks <= kMaxTileBlocks);
  static constexpr const TileFunction<Dot>* kTiles[kMaxTileRows] = {
      TilesOfRows<Dot, 1>::kTiles,  TilesOfRows<Dot, 2>::kTiles,  TilesOfRows<Dot, 3>::kTiles,
      TilesOfRows<Dot, 4>::kTiles,  TilesOfRows<Dot, 5>::kTiles,  TilesOfRows<Dot, 6>::kTiles,
      TilesOfRows<Dot, 7>::kTiles,  TilesOfRows<Dot, 8>::kTiles,  TilesOfRows<Dot, 9>::kTiles,
      TilesOfRows<Dot, 10>::kTiles, TilesOfRows<Dot, 11>::kTiles, TilesOfRows<Dot, 12>::kTiles,
      TilesOfRows<Dot, 13>::kTiles, TilesOfRows<Dot, 14>::kTiles, TilesOfRows<Dot, 15>::kTiles,
      TilesOfRows<Dot, 16>::kTiles};
  return kTiles[rows - 1][blocks - 1];
}

// Runs all rows at once, block after block.
template <class Dot>
void run_one_pass(const LinearTask& task) {
  using X = typename Dot::X;
  using W = typename Dot::W;
  SpanOf<Dot> span{};
  span.x = static_cast<const X*>(task.x);
  span.x_stride = task.x_stride;
  span.slices = slice_span(task, 0, task.padded_k);
  span.ahead_stride = kLineBytes;
  const TileFunction<Dot> run = tile_function<Dot>(static_cast<int>(task.num_rows), 1);
  for (int64_t block = 0; block < task.num_blocks; ++block) {
    span.weights = static_cast<const W*>(task.weights) + block * task.padded_k * kLanes;
    span.ahead = reinterpret_cast<const char*>(span.weights) + kAheadBytes<Dot::kPrefetchInto>;
    run(span, tile_sums(task, 0, block, kLanes));
  }
}

// Runs several passes over the blocks of a group, one part of k after the other. Each pass
// prefetches an equal share of the next part, so that memory is kept evenly busy.
template <class Dot>
void run_group(const LinearTask& task, int64_t block, int num_blocks, int64_t num_passes) {
  using X = typename Dot::X;
  using W = typename Dot::W;
  const X* x = static_cast<const X*>(task.x);
  SpanOf<Dot> span{};
  span.x_stride = task.x_stride;
  span.block_stride = task.padded_k * kLanes;
  const W* weights = static_cast<const W*>(task.weights) + block * span.block_stride;

  const int64_t group_bytes = num_blocks * span.block_stride * int64_t{sizeof(W)};
  const int64_t num_parts = (group_bytes + Dot::kGroupBytes - 1) / Dot::kGroupBytes;
  constexpr int64_t kUnit = Dot::kDotDepth * Dot::kUnroll;
  const int64_t k_part = (task.padded_k / kUnit + num_parts - 1) / num_parts * kUnit;
  const int64_t piece = k_part * kLanes;  // of one block
  const int64_t share = num_blocks * piece / num_passes;
  for (int64_t k = 0; k < task.padded_k; k += k_part) {
    const bool is_last = k + k_part >= task.padded_k;
    const int64_t num_k = is_last ? task.padded_k - k : k_part;
    span.slices = slice_span(task, k, k + num_k);
    span.ahead_stride = share * int64_t{sizeof(W)} / (num_k / Dot::kDotDepth);
    span.weights = weights + k * kLanes;
    // The next part of every block, of this group or of the group that follows it.
    const W* next = is_last ? weights + num_blocks * span.block_stride : span.weights + piece;
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      const int64_t row = task.num_rows * pass / num_passes;
      const int rows = static_cast<int>(task.num_rows * (pass + 1) / num_passes - row);
      span.x = x + row * task.x_stride + k;
      const int64_t offset = pass * share;
      span.ahead =
          reinterpret_cast<const char*>(next + offset / piece * span.block_stride + offset % piece);
      TileSums sums = tile_sums(task, row, block, num_blocks * kLanes);
      if (num_parts == 1) sums.partials = task.partials;
      tile_function<Dot>(rows, num_blocks)(span, sums);
    }
  }
}

// The two dots differ only in the cache that they prefetch into.
template <class OnePassDot, class Dot>
void run_tiles(const LinearTask& task) {
  if (task.num_rows <= Dot::kOnePassRows) return run_one_pass<OnePassDot>(task);
  const int64_t num_passes = (task.num_rows + Dot::kPassRows - 1) / Dot::kPassRows;
  for (int64_t block = 0; block < task.num_blocks; block += Dot::kPassBlocks) {
    const int64_t left = task.num_blocks - block;
    run_group<Dot>(task, block, left < Dot::kPassBlocks ? static_cast<int>(left) : Dot::kPassBlocks,
                   num_passes);
  }
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
