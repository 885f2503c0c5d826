// Loops of the matrix product around a register tile of rows x blocks of 16 outputs. Only for
// kernels/linear.cc.
//
// Each output is one accumulator that meets its k in order. Splitting k only moves the accumulator
// through memory, exactly, so neither the tile's shape nor any blocking shows in the result.
#pragma once

#include "cpu/kernels/linear.h"
#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

constexpr int kMaxTileBlocks = 4;
constexpr int64_t kAheadBytes = 2 << 10;       // of one block
constexpr int64_t kWeightsL1Bytes = 24 << 10;  // of one group of blocks, between passes of rows

constexpr int tile_blocks(int rows, int accumulators) {
  const int blocks = accumulators / rows;
  return blocks < kMaxTileBlocks ? blocks : kMaxTileBlocks;
}

// Where a tile stands: x at its first row and k, packed weights at its first block and k.
template <class X>
struct TileSpan {
  const X* x;
  int64_t x_stride;  // elements between rows
  const X* weights;
  int64_t block_stride;  // elements between blocks
  int64_t num_k;
  // While a block's weights are used, those this many elements further on are fetched: one distance
  // for the first `turn_k` of k, another for the rest.
  int64_t turn_k;
  int64_t ahead[kMaxTileBlocks];
  int64_t ahead_after_turn[kMaxTileBlocks];
};

// sums [kRows, sums_stride]: += x W^T, or = when it is the first part of k.
template <class Dot, int kRows, int kBlocks>
void run_tile(const TileSpan<typename Dot::X>& span, float* sums, int64_t sums_stride,
              bool is_first) {
  F32x16 acc[kRows][kBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      acc[r][b] = is_first ? zero() : load(sums + r * sums_stride + b * kLanes);
    }
  }
  const auto step = [&](int64_t k, const int64_t* ahead) {
    typename Dot::Weights w[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const typename Dot::X* weights = span.weights + b * span.block_stride + k * kLanes;
      w[b] = Dot::weights(weights);
      __builtin_prefetch(weights + ahead[b], 0, 3);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename Dot::Factor x = Dot::factor(span.x + r * span.x_stride + k);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) acc[r][b] = Dot::dot(acc[r][b], w[b], x);
    }
  };
  int64_t k = 0;
  for (; k < span.turn_k; k += Dot::kStep) step(k, span.ahead);
  for (; k < span.num_k; k += Dot::kStep) step(k, span.ahead_after_turn);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) store(sums + r * sums_stride + b * kLanes, acc[r][b]);
  }
}

template <class Dot>
using TileFunction = void (*)(const TileSpan<typename Dot::X>&, float*, int64_t, bool);

// Null for tiles that do not fit the registers; the loops below never ask for one.
template <class Dot, int kRows, int kBlocks>
constexpr TileFunction<Dot> tile_or_null() {
  if constexpr (kRows <= Dot::kMaxRows && kRows * kBlocks <= Dot::kAccumulators) {
    return run_tile<Dot, kRows, kBlocks>;
  } else {
    return nullptr;
  }
}

template <class Dot, int kRows>
constexpr TileFunction<Dot> kTilesOfRows[kMaxTileBlocks] = {
    tile_or_null<Dot, kRows, 1>(), tile_or_null<Dot, kRows, 2>(), tile_or_null<Dot, kRows, 3>(),
    tile_or_null<Dot, kRows, 4>()};

template <class Dot>
TileFunction<Dot> tile_function(int rows, int blocks) {
  static_assert(Dot::kMaxRows <= 8);
  static constexpr const TileFunction<Dot>* kTiles[] = {
      kTilesOfRows<Dot, 1>, kTilesOfRows<Dot, 2>, kTilesOfRows<Dot, 3>, kTilesOfRows<Dot, 4>,
      kTilesOfRows<Dot, 5>, kTilesOfRows<Dot, 6>, kTilesOfRows<Dot, 7>, kTilesOfRows<Dot, 8>};
  return kTiles[rows - 1][blocks - 1];
}

// How a group's k is cut, and what its tiles fetch. With one pass over the weights each tile
// fetches its own blocks a little ahead, then the beginning of the next group. With several, a part
// of k stays in the L1 cache between passes, and the passes share out the blocks of the next part.
template <class X>
class GroupPlan {
 public:
  GroupPlan(const LinearTask& task, int num_blocks, int num_passes)
      : num_k_(task.padded_k), num_blocks_(num_blocks), num_passes_(num_passes) {
    block_stride_ = task.padded_k * kLanes;
    next_group_ = num_blocks * block_stride_;
    k_part_ = num_k_;
    if (num_passes > 1) {
      const int64_t most = kWeightsL1Bytes / (num_blocks * kLanes * int64_t{sizeof(X)});
      const int64_t num_parts = (num_k_ + most - 1) / most;
      k_part_ = ((num_k_ + num_parts - 1) / num_parts + 31) / 32 * 32;
    }
  }
  int64_t k_part() const { return k_part_; }

  TileSpan<X> span(int64_t k, int pass) const {
    TileSpan<X> span{};
    span.x_stride = num_k_;
    span.block_stride = block_stride_;
    const bool is_last = k + k_part_ >= num_k_;
    span.num_k = is_last ? num_k_ - k : k_part_;
    if (num_passes_ == 1) {
      constexpr int64_t kAheadK = kAheadBytes / (kLanes * int64_t{sizeof(X)});
      span.turn_k = num_k_ > kAheadK ? (num_k_ - kAheadK) / 2 * 2 : 0;
      for (int b = 0; b < num_blocks_; ++b) {
        span.ahead[b] = kAheadK * kLanes;
        span.ahead_after_turn[b] = next_group_ - span.turn_k * kLanes;
      }
      return span;
    }
    for (int b = pass; b < num_blocks_; b += num_passes_) {
      span.ahead_after_turn[b] = is_last ? next_group_ - k * kLanes : k_part_ * kLanes;
    }
    return span;
  }

 private:
  int64_t num_k_;
  int num_blocks_;
  int num_passes_;
  int64_t block_stride_;
  int64_t next_group_;
  int64_t k_part_;
};

// The product for at most kMaxTileBlocks blocks.
template <class Dot>
void run_group(const LinearTask& task, int64_t block, int num_blocks) {
  using X = typename Dot::X;
  const X* x = static_cast<const X*>(task.x);
  const X* weights = static_cast<const X*>(task.weights) + block * task.padded_k * kLanes;
  const int num_passes = static_cast<int>((task.num_rows + Dot::kMaxRows - 1) / Dot::kMaxRows);
  const GroupPlan<X> plan(task, num_blocks, num_passes);
  for (int64_t k = 0; k < task.padded_k; k += plan.k_part()) {
    for (int pass = 0; pass < num_passes; ++pass) {
      const int64_t row = pass * Dot::kMaxRows;
      const int rows = task.num_rows - row < Dot::kMaxRows ? static_cast<int>(task.num_rows - row)
                                                           : Dot::kMaxRows;
      TileSpan<X> span = plan.span(k, pass);
      span.x = x + row * task.padded_k + k;
      span.weights = weights + k * kLanes;
      const TileFunction<Dot> run = tile_function<Dot>(rows, num_blocks);
      run(span, task.sums + row * task.sums_stride + block * kLanes, task.sums_stride, k == 0);
    }
  }
}

template <class Dot>
void run_tiles(const LinearTask& task) {
  const int most_rows =
      task.num_rows < Dot::kMaxRows ? static_cast<int>(task.num_rows) : Dot::kMaxRows;
  const int blocks = tile_blocks(most_rows, Dot::kAccumulators);
  for (int64_t block = 0; block < task.num_blocks; block += blocks) {
    const int64_t left = task.num_blocks - block;
    run_group<Dot>(task, block, left < blocks ? static_cast<int>(left) : blocks);
  }
}

}  // namespace
}  // namespace specdec::cpu::SPECDEC_ISA
