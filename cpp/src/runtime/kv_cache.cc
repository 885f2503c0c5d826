#include "runtime/kv_cache.h"

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

PagedKvView layer_view(const KvCacheShape& shape, int num_blocks) {
  return {.dtype = shape.format.dtype,
          .num_blocks = num_blocks,
          .block_size = shape.format.block_size,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim};
}

}  // namespace

KvCache::KvCache(Backend& backend, const KvCacheShape& shape, int num_blocks) {
  SPECDEC_CHECK_GT(num_blocks, 0);
  if (shape.num_layers == 0) return;
  PagedKvView layer = layer_view(shape, num_blocks + 1);
  const size_t layer_bytes = backend.kv_layer_bytes(layer);
  try {
    for (int i = 0; i < shape.num_layers; ++i) {
      for (void** part : {&layer.keys, &layer.values}) {
        buffers_.push_back(backend.allocate(layer_bytes, "the KV cache"));
        *part = buffers_.back().data();
        size_bytes_ += static_cast<int64_t>(layer_bytes);
      }
      layers_.push_back(layer);
    }
  } catch (const OutOfMemory&) {
    throw OutOfMemory(str_cat("no memory for a KV cache of ", num_blocks, " blocks (",
                              2 * layer_bytes * shape.num_layers,
                              " bytes): lower kv_cache_memory_bytes or num_kv_blocks, or on a GPU "
                              "gpu_memory_utilization"));
  }
}

int64_t KvCache::block_bytes(const Backend& backend, const KvCacheShape& shape) {
  if (shape.num_layers == 0) return 0;
  // The difference leaves out what a layer takes once, whatever its number of blocks.
  const size_t one = backend.kv_layer_bytes(layer_view(shape, 1));
  const size_t two = backend.kv_layer_bytes(layer_view(shape, 2));
  return 2 * static_cast<int64_t>(two - one) * shape.num_layers;
}

}  // namespace specdec
