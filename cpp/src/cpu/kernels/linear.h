// Products of rows with packed weights. Plain aggregates only: see kernel_table.h.
//
// Packed layout: blocks of 16 outputs, padded with zeros to a whole block, each over k padded with
// zeros to padded_k:
//   float32   [k][16 outputs]
//   bfloat16  [k / 2][16][2], k padded to a multiple of 32: pairs of neighbouring k side by side,
//   as
//             vdpbf16ps and the AMX tile products want them
//   integers  see linear_int.h
#pragma once

#include <cstdint>

namespace specdec::cpu {

// Storage formats of a packed matrix. Integer formats are multiplied with rows of integers.
enum PackedFormat : int {
  kPackedF32,
  kPackedBf16,
  kPackedInt8,
  kPackedInt8Grouped,
  kPackedInt8GroupedMin,
  kPackedInt4Grouped,
  kPackedInt4GroupedMin,
  kPackedInt4GroupedZero,
  kPackedInt4Table,
  kPackedInt4SmallTable,  // the same, of magnitudes below kSmallTableOffset
  kPackedInt8Grouped16,
  kNumPackedFormats,
};

// A piece of k (a slice, or all of k), and how its sum is folded into the total. A stack of partial
// sums starts empty. After the slice's sum, which starts from zero, is there:
//   num_folds times  sum = top of the stack + sum
// and the sum is pushed, which makes it number `stack_index` of the stack.
struct SumSlice {
  int64_t end;  // k; the slice begins where the one before it ends
  int num_folds;
  int stack_index;
  bool is_left;  // no later slice folds it: it is a result
};

// Most partial sums on the stack at once, the current slice's included.
inline constexpr int kMaxPartials = 5;

// sums[r, n] = sum_k x[r, k] W[n, k] for a cell: some rows and some consecutive blocks. The order
// of an output's operations depends on k alone, whatever the cell.
struct LinearTask {
  const void* weights;  // the first block; the next begins block_bytes further on
  int64_t block_bytes;
  int64_t padded_k;
  const void* x;     // [num_rows, x_stride] as LinearKernels says
  int64_t x_stride;  // in elements, padded_k or slightly more; for codes, in groups
  int64_t num_rows;
  int64_t num_blocks;
  const SumSlice* slices;  // [num_slices]; the last ends at padded_k, the others at multiples of 64
  int num_slices;
  float* sums;           // out: [num_rows, sums_stride], num_blocks * 16 used per row
  int64_t sums_stride;   // floats
  int64_t plane_stride;  // floats from the results of stack index i to those of stack index i + 1
  float* partials;  // scratch [num_rows, kMaxPartials, kMaxCellBlocks * 16]; unused with one slice
  bool scales_outputs;  // kPackedInt8: the sums are multiplied by the outputs' scales
  const int8_t* table;  // of formats with a table: [16]
};

// Most blocks that a kernel sums together.
inline constexpr int kMaxCellBlocks = 3;

struct LinearKernels {
  void (*run[kNumPackedFormats])(const LinearTask& task);
  // How rows are stored for each weight format. kPackedF32: float32. kPackedBf16: bfloat16, or the
  // same values as float32 (widens_bf16). 8-bit weights, and kPackedInt4Table: IntRowGroups of
  // int8 codes, or of int16 codes with each four neighbours in the order 0, 2, 1, 3 (widens_int8).
  // Other 4-bit weights: IntRowGroups of int8 codes.
  bool widens_bf16;
  bool widens_int8;
  // 8-bit codes are stored as signed bytes, after subtracting their offset.
  bool signed_int8;
};

}  // namespace specdec::cpu
