// Attention over the paged cache, and copies within the cache.
//
// A row's result depends on positions alone: keys come in tiles of kAttentionTile positions, or
// half as many for heads of more than kMaxCappedHeadDim elements, and tiles in splits (split_of in
// attention_items.cuh). A softmax runs over the tiles of a split in order, and splits are joined in
// order. Which block computes which split, and beside which other rows, never changes a bit.
//
// Plain version: reference::tree_attention (tests/testing/oracle/operations.cc), double loops that
// AttentionTest.MatchesDoubleLoop (tests/cuda/backend/attention_test.cc) compares with; its
// MatchesCpuBackend compares with the CPU kernel (cpp/src/cpu/kernels/attention.cc). Copies have no
// plain version: kv_copy_test.cc and features_test.cc, in the same folder, compare with the same
// copies on the host.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kAttentionTile = 64;         // positions
inline constexpr int kFewAttentionRows = 64;      // most rows for the few-rows kernels: decoding
inline constexpr int kMaxAttentionHeadDim = 512;  // a multiple of 8, of 16 with int8
inline constexpr int kMaxCappedHeadDim = 256;     // with a soft cap of scores
// Most shared memory of a block. Some GPUs have less than heads of more than 128 need.
inline constexpr int attention_shared_bytes(int head_dim) {
  return (head_dim <= 128 ? 98 : 162) * 1024;
}

// The work list of attention: which block computes which (row, head, split). It is the same in all
// layers of a pass that see the same positions, so the first of them writes it to memory and the
// others read it.
struct AttentionWorkList {
  void* memory = nullptr;  // null: the launch works it out for itself alone
  size_t size_bytes = 0;   // if the list may not fit, every launch works it out
  bool is_made = false;    // by an earlier launch with the same batch, heads and positions
};

struct AttentionParams {
  const void* q = nullptr;  // [num_rows, num_heads * head_dim] act
  void* out = nullptr;      // likewise; zeros for rows of no request
  DType act_dtype = DType::kBF16;
  BatchView batch;  // device pointers; num_rows and num_requests may be upper bounds
  PagedKvView kv;
  int num_heads = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;
  int sliding_window = 0;
  const float* sinks = nullptr;  // [num_heads], or null
  int first_position = 0;
  int num_multiprocessors = 0;
  int max_shared_bytes = 0;  // per block
  // Memory for partial results. Zeroed once, before the first use; used by one stream at a time. If
  // partial results do not fit, fewer blocks share the work.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  AttentionWorkList work_list{};
};

struct KvLayerPointers {
  void* keys = nullptr;
  void* values = nullptr;
};

// Copies the keys and values of slots in every layer, as CopyKvArgs says. All arguments are in
// device memory, so that the launch can be captured.
struct CopyKvParams {
  const KvLayerPointers* layers = nullptr;  // [num_layers]
  int num_layers = 0;
  PagedKvView shape;                   // of every layer; keys and values unused
  const int64_t* slots = nullptr;      // [*num_pairs, 2] from, to
  const int32_t* num_pairs = nullptr;  // [1]
};

// Copies rows of features likewise.
struct CopyRowsParams {
  PagedRowsView rows;  // 2 bytes per element
  const int64_t* slots = nullptr;
  const int32_t* num_pairs = nullptr;
};

struct AttentionKernels {
  void (*tree_attention)(Stream&, const AttentionParams&) = nullptr;
  void (*copy_kv)(Stream&, const CopyKvParams&) = nullptr;
  void (*copy_rows)(Stream&, const CopyRowsParams&) = nullptr;
};

namespace native {
AttentionKernels attention_kernels();
}
namespace emulated {
AttentionKernels attention_kernels();
}

}  // namespace specdec::cuda
