// Where a slot's keys or values lie in a layer of the paged cache: [block][KV head][offset in
// block][head_dim] elements, so that the rows of one block and head are contiguous. Int8 caches
// hold codes in the same order, followed by their float32 scales [block][KV head][offset in block].
#pragma once

#include <cstdint>

#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

struct KvLayout {
  int num_blocks;
  int block_size;
  int num_kv_heads;
  int head_dim;

  // Index of the row of head_dim elements of a slot (block * block_size + offset) and KV head. 32
  // bits are enough (check_kv refuses larger layers), and a 64-bit division takes many
  // instructions.
  __host__ __device__ int64_t row(int64_t slot, int head) const {
    const auto index = static_cast<uint32_t>(slot);
    const auto size = static_cast<uint32_t>(block_size);
    const uint32_t block = index / size;
    return (block * static_cast<uint32_t>(num_kv_heads) + static_cast<uint32_t>(head)) * size +
           index % size;
  }
  __host__ __device__ int64_t num_rows() const {
    return static_cast<int64_t>(num_blocks) * num_kv_heads * block_size;
  }
  // The scales of an int8 layer, which follow its codes.
  __host__ __device__ const float* scales(const void* codes) const {
    return reinterpret_cast<const float*>(static_cast<const int8_t*>(codes) +
                                          num_rows() * head_dim);
  }
  __host__ __device__ float* scales(void* codes) const {
    return reinterpret_cast<float*>(static_cast<int8_t*>(codes) + num_rows() * head_dim);
  }
};

}  // namespace specdec::cuda::SPECDEC_TARGET
