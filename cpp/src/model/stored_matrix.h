// Matrices that a checkpoint stores in few bits, under several tensors.
//
// With N outputs, K inputs, groups of g inputs, b bits, and the name X.weight:
//   GPTQ         X.qweight I32 [K b / 32, N], X.qzeros I32 [K / g, N b / 32], X.scales [K / g, N],
//                X.g_idx I32 [K]: scale * (code - zero); b is 2, 3, 4 or 8
//   AWQ          X.qweight I32 [K, N / 8], X.qzeros I32 [K / g, N / 8], X.scales [K / g, N]: the
//                same, each word with 8 outputs in the order 0, 2, 4, 6, 1, 3, 5, 7
//   packed       X.weight_packed I32 [N, K b / 32], X.weight_scale [N, K / g], perhaps
//                X.weight_zero_point I32 [N b / 32, K / g], X.weight_g_idx (compressed-tensors)
//   int8         X.weight I8 [N, K], X.weight_scale [N, K / g], perhaps X.weight_zero_point I8
//   NVFP4        X.weight_packed U8 [N, K / 2], X.weight_scale F8_E4M3 [N, K / 16], and
//                X.weight_global_scale, which divides; or X.weight U8 and X.weight_scale_2, which
//                multiplies (ModelOpt)
//   MXFP4        X.weight_packed U8 [N, K / 2], X.weight_scale U8 [N, K / 32], an exponent
//   MXFP4 stack  X_blocks U8 [M, R, K / 32, 16], X_scales U8 [M, R, K / 32] of M matrices, N = M R
//                (gpt-oss)
//   bitsandbytes X.weight, N K / 2 bytes with the even input in the high half, X.weight.absmax per
//                64 inputs, X.weight.quant_map; or X.weight I8 [N, K] with X.SCB [N]
// Streams of codes and zeros begin in the low bits of a word. Scales may be F16, BF16 or F32.
#pragma once

#include <cstdint>
#include <string>

#include "core/thread_pool.h"
#include "model/config.h"
#include "model/kept_matrix.h"
#include "model/stored_tensors.h"

namespace specdec {

enum class StoredLayout : uint8_t {
  kPlain,  // one of the layouts of WeightStore::matrix
  kGptq,
  kAwq,
  kPacked,
  kInt8,
  kNvfp4,
  kMxfp4,
  kMxfp4Stack,
  kNibbles,  // nf4 or fp4 of bitsandbytes
};

// The layout of the matrix `name` ("X.weight", or "X" of a stack), by the tensors that there are.
StoredLayout find_layout(const StoredTensors& tensors, const std::string& name,
                         const StoredScheme& scheme);

// Reads the rows `own`, or, where a layout runs along outputs, all rows; on the threads of `pool`,
// or where it is null on this one. Throws CheckpointError for tensors that are missing or do not
// fit together.
KeptMatrix read_stored_matrix(StoredTensors& tensors, const StoredScheme& scheme,
                              StoredLayout layout, const MatrixShape& shape,
                              ThreadPool* pool = nullptr);

}  // namespace specdec
