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

// What a layer keeps per token.
struct KvLayerShape {
  int num_kv_heads = 0;  // 0: no keys and values, in recurrent layers
  int head_dim = 0;
  // Index of an earlier layer, or of a layer of the target, whose keys and values these are; -1:
  // its own.
  int source = -1;
};

struct KvCacheShape {
  std::vector<KvLayerShape> layers = {};
  KvFormat format = {};
};

class KvCache {
 public:
  // Room for num_blocks usable blocks and the null block. Throws OutOfMemory saying what to lower.
  // `target`: the layers of the target's cache, for a model that reads them.
  KvCache(Backend& backend, const KvCacheShape& shape, int num_blocks,
          std::span<const PagedKvView> target = {});

  std::span<const PagedKvView> layers() const { return layers_; }  // as KvCacheShape::layers
  // Of the layers that have their own, those of one shape together.
  std::span<const PagedKvView> own_layers() const { return own_layers_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Bytes one block takes over all layers.
  static int64_t block_bytes(const Backend& backend, const KvCacheShape& shape);

 private:
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
  std::vector<PagedKvView> own_layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace specdec
