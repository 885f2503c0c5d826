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

  // Rows of head_dim elements before that of a slot (block * block_size + offset) and head. A layer
  // has no more than an int can count (check_kv), and a division of 64 bits is long.
  __host__ __device__ int64_t row(int64_t slot, int head) const {
    const auto place = static_cast<uint32_t>(slot);
    const auto size = static_cast<uint32_t>(block_size);
    const uint32_t block = place / size;
    return (block * static_cast<uint32_t>(num_kv_heads) + static_cast<uint32_t>(head)) * size +
           place % size;
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
