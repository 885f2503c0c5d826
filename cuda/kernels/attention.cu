// Dispatches attention by act dtype; copies within the cache.
#include "cuda/common/kv_layout.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/attention_launch.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kCopyThreads = 64;
constexpr int kBatch = 8;  // pairs read together
constexpr int kFeatureBytes = 2;

void tree_attention(Stream& stream, const AttentionParams& params) {
  if (params.act_dtype == DType::kBF16) {
    attend_bf16(stream, params);
  } else {
    attend_f16(stream, params);
  }
}

// Copies one element of a row, or its scale, for all pairs; the last argument maps a slot to the
// element's index. Within a request slots are read in rising order and written at or below the slot
// read, so no pair reads what an earlier pair wrote: kBatch pairs are read together, then written
// in order.
template <class Element, class IndexOf>
__device__ __forceinline__ void copy_elements(const int64_t* slots, int num_pairs,
                                              Element* elements, const IndexOf& index_of) {
  for (int first = 0; first < num_pairs; first += kBatch) {
    Element values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= num_pairs) continue;
      values[i] = elements[index_of(slots[2 * (first + i)])];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= num_pairs) continue;
      elements[index_of(slots[2 * (first + i) + 1])] = values[i];
    }
  }
}

// Grid: [layers, KV heads, keys or values].
__global__ void __launch_bounds__(kCopyThreads) copy_kv_kernel(const CopyKvParams params) {
  ptx::wait_for_previous();
  const KvLayerPointers layer = params.layers[blockIdx.x];
  void* data = blockIdx.z == 0 ? layer.keys : layer.values;
  const int head = blockIdx.y;
  const bool has_scales = params.shape.dtype == DType::kI8;
  const int row_chunks = params.shape.head_dim * (has_scales ? 1 : 2) / 16;
  const int thread = threadIdx.x;
  const KvLayout layout = {params.shape.num_blocks, params.shape.block_size,
                           params.shape.num_kv_heads, params.shape.head_dim};
  if (thread < row_chunks) {
    copy_elements(params.slots, *params.num_pairs, static_cast<uint4*>(data) + thread,
                  [&](int64_t slot) { return layout.row(slot, head) * row_chunks; });
  } else if (thread == row_chunks && has_scales) {
    copy_elements(params.slots, *params.num_pairs, layout.scales(data),
                  [&](int64_t slot) { return layout.row(slot, head); });
  }
  ptx::let_next_start();
}

// A thread copies one chunk of every row: 16 bytes, or one element if the row is no multiple of 16
// bytes.
template <class Chunk>
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows_kernel(const CopyRowsParams params, int64_t row_chunks) {
  ptx::wait_for_previous();
  const int chunk = blockIdx.x * kCopyThreads + threadIdx.x;
  if (chunk < row_chunks) {
    copy_elements(params.slots, *params.num_pairs, static_cast<Chunk*>(params.rows.rows) + chunk,
                  [&](int64_t slot) { return slot * row_chunks; });
  }
  ptx::let_next_start();
}

void copy_kv(Stream& stream, const CopyKvParams& params) {
  launch("copy_kv", stream, copy_kv_kernel,
         {.grid = {static_cast<unsigned>(params.num_layers),
                   static_cast<unsigned>(params.shape.num_kv_heads), 2},
          .block = {kCopyThreads},
          .overlaps_previous = true},
         params);
}

template <class Chunk>
void launch_copy_rows(Stream& stream, const CopyRowsParams& params) {
  const int64_t row_chunks = params.rows.width * kFeatureBytes / sizeof(Chunk);
  launch("copy_rows", stream, copy_rows_kernel<Chunk>,
         {.grid = {static_cast<unsigned>((row_chunks + kCopyThreads - 1) / kCopyThreads)},
          .block = {kCopyThreads},
          .overlaps_previous = true},
         params, row_chunks);
}

void copy_rows(Stream& stream, const CopyRowsParams& params) {
  if (params.rows.width % (sizeof(uint4) / kFeatureBytes) == 0) {
    launch_copy_rows<uint4>(stream, params);
  } else {
    launch_copy_rows<uint16_t>(stream, params);
  }
}

}  // namespace

AttentionKernels attention_kernels() {
  return {.tree_attention = tree_attention, .copy_kv = copy_kv, .copy_rows = copy_rows};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
