// Where a slot's keys or values lie in a layer of the paged cache: [block][kv head][offset in
// block] [head_dim] elements, so that a block of one head is one piece. Int8 caches hold codes in
// the same order, followed by their float32 scales [block][kv head][offset].
#pragma once

#include <cstdint>

#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

struct KvLayout {
  int num_blocks;
  int block_size;
  int num_kv_heads;
  int head_dim;

  // Rows of head_dim elements before that of a slot (block * block_size + offset) and head.
  __host__ __device__ int64_t row(int64_t slot, int head) const {
    const int64_t block = slot / block_size;
    return (block * num_kv_heads + head) * block_size + slot % block_size;
  }
  __host__ __device__ int64_t num_rows() const {
    return static_cast<int64_t>(num_blocks) * num_kv_heads * block_size;
  }
  // Of an int8 layer.
  __host__ __device__ const float* scales(const void* codes) const {
    return reinterpret_cast<const float*>(static_cast<const int8_t*>(codes) +
                                          num_rows() * head_dim);
  }
  __host__ __device__ float* scales(void* codes) const {
    return reinterpret_cast<float*>(static_cast<int8_t*>(codes) + num_rows() * head_dim);
  }
};

}  // namespace specdec::cuda::SPECDEC_TARGET
