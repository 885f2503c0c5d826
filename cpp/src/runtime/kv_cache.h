// Storage of the paged KV cache: one allocation a layer, addressed by the blocks of a BlockPool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace specdec {

struct KvFormat {
  int block_size = 0;         // tokens
  DType dtype = DType::kF32;  // the backend's act dtype, or int8
};

struct KvCacheShape {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KvFormat format;
};

class KvCache {
 public:
  // Room for num_blocks usable blocks and the null block. Throws OutOfMemory saying what to lower.
  KvCache(Backend& backend, const KvCacheShape& shape, int num_blocks);

  std::span<const PagedKvView> layers() const { return layers_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Bytes one block takes over all layers.
  static int64_t block_bytes(const Backend& backend, const KvCacheShape& shape);

 private:
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace specdec
