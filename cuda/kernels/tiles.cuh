// How weights and rows lie in memory for products, and in what order k is summed.
//
// A product has weights as the A operand of mma.sync (16 outputs) and rows as the B operand (8
// rows). Weights are blocks of 16 outputs x 32 inputs, [tile][k block], each block one or more
// 16-byte pieces a lane in the order of lanes, so that a warp streams them into registers
// without shared memory. Rows are records of 32 inputs, [row][k block]. What a block and a record
// hold is up to the format, a policy with
//
//   kBlockBytes, kRecordBytes      of a block of weights, of a record of a row (multiples of 16)
//   kMaxTilesAtOnce                tiles that a warp of few rows may work on together, 1 or 2
//   kManyRowsBlocksPerSm           what the registers of many rows leave room for
//   kMaxStages                     of few rows: loads under way
//   Weights, Inputs                registers: a lane's part of a block, of a record of its row
//   load_weights(block, lane)      `block` is in global memory and never written
//   load_inputs(record, t)         `record` of row g = lane / 4 in shared or global memory;
//                                  t = lane % 4
//   no_inputs()                    what stands for a row that is not there: products are zero
//   multiply(sums, weights, inputs)  sums of a 16 x 8 tile += the products of one block
//   store_inputs(record, part, values)  4 of the record's 32 inputs, by the 8 consecutive lanes
//                                  that hold parts 0..7 together. Whole warps call it; lanes
//                                  past the end of the row with a null record.
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

// Weights in the activations' dtype. The two mma steps of a block take inputs in this order: step s
// of lane 4g + t has inputs 8t + 4s .. +3, of weights and rows alike. Piece s of a lane is its
// operand of step s as it goes into registers: two inputs of output g, the same of g + 8, then the
// other two of each.
template <class T>
struct ActFormat {
  using Element = T;
  static constexpr int kBlockBytes = kTileOutputs * kBlockInputs * 2;
  static constexpr int kRecordBytes = kBlockInputs * 2;
  static constexpr int kMaxTilesAtOnce = 2;
  static constexpr int kManyRowsBlocksPerSm = 2;
  static constexpr int kMaxStages = 4;

  struct Weights {
    uint4 steps[2];
  };
  using Inputs = uint4;

  static __device__ __forceinline__ Weights load_weights(const unsigned char* block, int lane) {
    return {{ptx::load_streaming(block + lane * 16), ptx::load_streaming(block + lane * 16 + 512)}};
  }

  static __device__ __forceinline__ Inputs load_inputs(const unsigned char* record, int t) {
    return *reinterpret_cast<const uint4*>(record + t * 16);
  }
  static __device__ __forceinline__ Inputs no_inputs() { return make_uint4(0, 0, 0, 0); }

  static __device__ __forceinline__ void multiply(float (&sums)[4], const Weights& weights,
                                                  const Inputs& inputs) {
    const uint4& first = weights.steps[0];
    const uint4& second = weights.steps[1];
    ptx::mma_m16n8k16<T>(sums, {first.x, first.y, first.z, first.w}, {inputs.x, inputs.y});
    ptx::mma_m16n8k16<T>(sums, {second.x, second.y, second.z, second.w}, {inputs.z, inputs.w});
  }

  static __device__ __forceinline__ void store_inputs(unsigned char* record, int part,
                                                      float4 values) {
    if (record == nullptr) return;
    *reinterpret_cast<uint2*>(record + part * 8) =
        make_uint2(pack<T>(values.x, values.y), pack<T>(values.z, values.w));
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
  const int t = k % kBlockInputs / 8;
  const int step = k % 8 / 4;
  return block * (kTileOutputs * kBlockInputs * 2) + step * 512 + (output % 8 * 4 + t) * 16 +
         (k % 4 / 2 * 2 + output / 8) * 4;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
