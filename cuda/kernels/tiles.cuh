// How weights and rows lie in memory for projections, and in what order k is summed.
//
// Weights are the A operand of mma.sync (16 outputs), rows the B operand (8 rows). Weights are
// stored as blocks of 16 outputs x 32 inputs, [tile][k block]. A block is one or more 16-byte
// pieces per lane, in the order of the lanes, so a warp streams it into registers without shared
// memory. Rows are stored as records of 32 inputs, [row][k block], act elements in order. A format
// is a policy class that says what a block holds:
//
//   Element                        the act dtype
//   kBlockBytes                    size of a block of weights (a multiple of 16)
//   kMaxTilesAtOnce                few rows: tiles that a warp may work on together, 1 or 2
//   kManyRowsBlocksPerSm           many rows: blocks per SM that registers allow
//   kMaxStages                     few rows: most stages of weights in flight
//   Weights                        registers: a lane's part of a block
//   load_weights(block, lane)      `block` is in global memory and never written
//   Table                          registers: what all blocks need, made from (params, kBlockBytes)
//   multiply(sums, weights, inputs, table)  sums of a 16 x 8 tile += the products of one block
//
// A block takes two mma. Mma s multiplies inputs 16s .. 16s + 15; lane 4g + t has four of them, 16s
// + 4t .. +3, of weights and rows alike. By MMA-Sim, Hopper adds the 16 products of an mma in one
// sum, whatever their order, so a result depends only on which inputs form a group. wgmma forms the
// same groups (ptx_conformance_test.cc checks both on a GPU).
//
// A format with group scales first sums the products of a block, then scales that sum into `sums`.
// The kernels alone decide the order in which blocks are added.
//
// That order is the same for every number of rows: k blocks are cut into slices (SliceParams); the
// blocks of a slice are added one after the other to zero; then the slices are folded pairwise.
// ProjectionTest.SumsAreThoseOfConsecutiveGroupsOfSixteen (tests/cuda/backend/projection_test.cc)
// and CudaSlices.TotalIsTheTreeOfItsSlices (tests/cuda/backend/slices_test.cc) check it bit for
// bit.
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

// The k blocks of a slice. May be empty; slices past the last one are.
__device__ __forceinline__ Range slice_blocks(int slice, const SliceParams& slices) {
  const int last = slices.fold_order.num_entries;
  return {slices.bounds[min(slice, last)], slices.bounds[min(slice + 1, last)]};
}

// A lane's inputs of a record: x and y for the first mma, z and w for the second.
using Inputs = uint4;
inline constexpr int kHalfRecordBytes = kRecordBytes / 2;  // of a record: the inputs of one mma
inline constexpr int kInputBytes = kHalfRecordBytes / 4;   // a lane's part of them

// Loads from the record of row lane / 4, in global memory. Lanes without a row take no_inputs().
__device__ __forceinline__ Inputs load_inputs(const unsigned char* record, int lane) {
  const unsigned char* first = record + lane % 4 * kInputBytes;
  const uint2 low = *reinterpret_cast<const uint2*>(first);
  const uint2 high = *reinterpret_cast<const uint2*>(first + kHalfRecordBytes);
  return make_uint4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ Inputs no_inputs() { return make_uint4(0, 0, 0, 0); }

// Records in shared memory lie [k block][row]. Rows 0 and 2 of every four would share banks, and so
// would rows 1 and 3. Rows 2 and 3 therefore have their halves swapped, and the 16 lanes that read
// four rows at once have no bank conflicts.
__device__ __forceinline__ int shared_offset(int row, int offset) {
  return offset ^ (row & 2) * (kHalfRecordBytes / 2);
}
__device__ __forceinline__ Inputs load_shared_inputs(const unsigned char* record, int lane) {
  const int first = shared_offset(lane / 4, lane % 4 * kInputBytes);
  const uint2 low = *reinterpret_cast<const uint2*>(record + first);
  const uint2 high = *reinterpret_cast<const uint2*>(record + (first ^ kHalfRecordBytes));
  return make_uint4(low.x, low.y, high.x, high.y);
}

// The Table of most formats.
struct NoTable {
  __device__ __forceinline__ NoTable(const ProjectionParams&, int) {}
};

// Weights in the act dtype. Piece s of a lane is its operand of mma s in the order of the
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

  using Table = NoTable;
  static __device__ __forceinline__ void multiply(float (&sums)[4], const Weights& weights,
                                                  const Inputs& inputs, const Table&) {
    const uint4& first = weights.steps[0];
    const uint4& second = weights.steps[1];
    ptx::mma_m16n8k16<T>(sums, {first.x, first.y, first.z, first.w}, {inputs.x, inputs.y});
    ptx::mma_m16n8k16<T>(sums, {second.x, second.y, second.z, second.w}, {inputs.z, inputs.w});
  }
};

// The index of output `n` of a matrix with `out_features` outputs among the outputs of its tiles.
// Gated: a tile has 8 gates and the 8 ups that they multiply.
__host__ __device__ inline int64_t packed_index(int64_t n, int64_t out_features, bool gated) {
  if (!gated) return n;
  const int64_t dim = out_features / 2;
  const bool is_up = n >= dim;
  const int64_t feature = is_up ? n - dim : n;
  return feature / 8 * kTileOutputs + feature % 8 + (is_up ? 8 : 0);
}

// The byte offset of inputs k and k + 1 (k even) of an output in ActFormat's weights. The first
// argument is the output's packed_index.
__host__ __device__ inline int64_t act_pair_offset(int64_t index, int k, int num_k_blocks) {
  const int64_t block = index / kTileOutputs * num_k_blocks + k / kBlockInputs;
  const int output = static_cast<int>(index % kTileOutputs);
  const int t = k % 16 / 4;
  const int step = k % kBlockInputs / 16;
  return block * (kTileOutputs * kBlockInputs * 2) + step * 512 + (output % 8 * 4 + t) * 16 +
         (k % 4 / 2 * 2 + output / 8) * 4;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
