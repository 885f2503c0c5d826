// How weights and rows lie in memory for products, and in what order k is summed.
//
// A product has weights as the A operand of mma.sync (16 outputs) and rows as the B operand (8
// rows). Weights are blocks of 16 outputs x 32 inputs, [tile][k block], each block one or more
// 16-byte pieces a lane in the order of lanes, so that a warp streams them into registers
// without shared memory. Rows are records of 32 inputs, [row][k block], act elements in order. What
// a block holds is up to the format, a policy with
//
//   Element                        the activations' dtype
//   kBlockBytes                    of a block of weights (a multiple of 16)
//   kMaxTilesAtOnce                tiles that a warp of few rows may work on together, 1 or 2
//   kManyRowsBlocksPerSm           what the registers of many rows leave room for
//   kMaxStages                     of few rows: loads under way
//   Weights                        registers: a lane's part of a block
//   load_weights(block, lane)      `block` is in global memory and never written
//   multiply(sums, weights, inputs)  sums of a 16 x 8 tile += the products of one block
//
// A block is two mma steps. Step s multiplies inputs 16s .. 16s + 15, and lane 4g + t has four of
// them, 16s + 4t .. +3, of weights and rows alike. By MMA-Sim, Hopper adds the 16 products of a
// step in one sum, whatever their order: only which inputs make a group can show in a result, and
// the groups are those of wgmma, too (ptx_conformance_test.cc asks a GPU).
//
// A format with scales multiplies and adds within a block exactly and scales that into `sums`:
// the order in which blocks are added is the kernels' alone.
//
// The order, for every number of rows: k blocks are cut into slices (SliceParams); the blocks of a
// slice are added one after the other to zero; then the slices are folded pairwise.
#pragma once

#include <cstdint>

#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/projection.h"

namespace specdec::cuda::SPECDEC_TARGET {

struct Range {
  int begin;
  int end;
};

// The k blocks of a slice. May be empty, and those past the last one are.
__device__ __forceinline__ Range slice_blocks(int slice, const SliceParams& slices) {
  const int last = slices.plan.num_steps;
  return {slices.bounds[min(slice, last)], slices.bounds[min(slice + 1, last)]};
}

// A lane's inputs of a record: x and y of step 0, z and w of step 1.
using Inputs = uint4;
inline constexpr int kStepBytes = kRecordBytes / 2;  // of a record
inline constexpr int kInputBytes = kStepBytes / 4;   // of a lane in it

// The record of row g = lane / 4, in global memory. Lanes without a row take no_inputs().
__device__ __forceinline__ Inputs load_inputs(const unsigned char* record, int lane) {
  const unsigned char* first = record + lane % 4 * kInputBytes;
  const uint2 low = *reinterpret_cast<const uint2*>(first);
  const uint2 high = *reinterpret_cast<const uint2*>(first + kStepBytes);
  return make_uint4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ Inputs no_inputs() { return make_uint4(0, 0, 0, 0); }

// Records in shared memory lie [k block][row]. Rows 0 and 2 of four would meet in a bank, and so
// would 1 and 3: rows 2 and 3 have their two steps in turned order, and the 16 lanes that read four
// rows at once meet in none.
__device__ __forceinline__ int shared_offset(int row, int offset) {
  return offset ^ (row & 2) * (kStepBytes / 2);
}
__device__ __forceinline__ Inputs load_shared_inputs(const unsigned char* record, int lane) {
  const int first = shared_offset(lane / 4, lane % 4 * kInputBytes);
  const uint2 low = *reinterpret_cast<const uint2*>(record + first);
  const uint2 high = *reinterpret_cast<const uint2*>(record + (first ^ kStepBytes));
  return make_uint4(low.x, low.y, high.x, high.y);
}

// Weights in the activations' dtype. Piece s of a lane is its operand of step s as it goes into
// registers: two inputs of output g, the same of g + 8, then the other two of each.
template <class T>
struct ActFormat {
  using Element = T;
  static constexpr int kBlockBytes = kTileOutputs * kBlockInputs * 2;
  static constexpr int kMaxTilesAtOnce = 2;
  static constexpr int kManyRowsBlocksPerSm = 2;
  static constexpr int kMaxStages = 4;

  struct Weights {
    uint4 steps[2];
  };

  static __device__ __forceinline__ Weights load_weights(const unsigned char* block, int lane) {
    return {{ptx::load_streaming(block + lane * 16), ptx::load_streaming(block + lane * 16 + 512)}};
  }

  static __device__ __forceinline__ void multiply(float (&sums)[4], const Weights& weights,
                                                  const Inputs& inputs) {
    const uint4& first = weights.steps[0];
    const uint4& second = weights.steps[1];
    ptx::mma_m16n8k16<T>(sums, {first.x, first.y, first.z, first.w}, {inputs.x, inputs.y});
    ptx::mma_m16n8k16<T>(sums, {second.x, second.y, second.z, second.w}, {inputs.z, inputs.w});
  }
};

// Where output `n` of a matrix with `out_features` outputs stands among the outputs of its tiles.
// Gated: 8 gates and the 8 ups they are multiplied with share a tile.
__host__ __device__ inline int64_t packed_place(int64_t n, int64_t out_features, bool gated) {
  if (!gated) return n;
  const int64_t dim = out_features / 2;
  const bool is_up = n >= dim;
  const int64_t feature = is_up ? n - dim : n;
  return feature / 8 * kTileOutputs + feature % 8 + (is_up ? 8 : 0);
}

// Where inputs k and k + 1 (k even) of an output lie in ActFormat's weights, in bytes; `place` is
// the output's packed_place.
__host__ __device__ inline int64_t act_pair_offset(int64_t place, int k, int num_k_blocks) {
  const int64_t block = place / kTileOutputs * num_k_blocks + k / kBlockInputs;
  const int output = static_cast<int>(place % kTileOutputs);
  const int t = k % 16 / 4;
  const int step = k % kBlockInputs / 16;
  return block * (kTileOutputs * kBlockInputs * 2) + step * 512 + (output % 8 * 4 + t) * 16 +
         (k % 4 / 2 * 2 + output / 8) * 4;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
