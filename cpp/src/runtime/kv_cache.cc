#include "runtime/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

PagedKvView layer_view(const KvLayerShape& layer, const KvFormat& format, int num_blocks) {
  return {.dtype = format.dtype,
          .num_blocks = num_blocks,
          .block_size = format.block_size,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim = layer.head_dim};
}

// Bytes of keys and values for that many blocks, over all layers.
int64_t bytes_of(const Backend& backend, const KvCacheShape& shape, int num_blocks) {
  int64_t bytes = 0;
  for (const KvLayerShape& layer : shape.layers) {
    if (layer.source >= 0 || layer.num_kv_heads == 0) continue;
    const PagedKvView view = layer_view(layer, shape.format, num_blocks);
    bytes += 2 * static_cast<int64_t>(backend.kv_layer_bytes(view));
  }
  return bytes;
}

}  // namespace

KvCache::KvCache(Backend& backend, const KvCacheShape& shape, int num_blocks,
                 std::span<const PagedKvView> target) {
  SPECDEC_CHECK_GT(num_blocks, 0);
  try {
    for (const KvLayerShape& layer : shape.layers) {
      if (layer.source >= 0) {
        const std::span<const PagedKvView> sources = target.empty() ? layers_ : target;
        SPECDEC_CHECK_LT(static_cast<size_t>(layer.source), sources.size());
        const PagedKvView source = sources[static_cast<size_t>(layer.source)];
        SPECDEC_CHECK_EQ(source.num_kv_heads, layer.num_kv_heads);
        SPECDEC_CHECK_EQ(source.head_dim, layer.head_dim);
        layers_.push_back(source);
        continue;
      }
      PagedKvView view = layer_view(layer, shape.format, num_blocks + 1);
      if (layer.num_kv_heads == 0) {
        layers_.push_back(view);
        continue;
      }
      for (void** part : {&view.keys, &view.values}) {
        const size_t bytes = backend.kv_layer_bytes(view);
        buffers_.push_back(backend.allocate(bytes, "the KV cache"));
        *part = buffers_.back().data();
        size_bytes_ += static_cast<int64_t>(bytes);
      }
      layers_.push_back(view);
      own_layers_.push_back(view);
    }
    std::ranges::stable_sort(own_layers_, {}, [](const PagedKvView& layer) {
      return std::pair(layer.num_kv_heads, layer.head_dim);
    });
  } catch (const OutOfMemory&) {
    throw OutOfMemory(str_cat("no memory for a KV cache of ", num_blocks, " blocks (",
                              bytes_of(backend, shape, num_blocks + 1),
                              " bytes): lower kv_cache_memory_bytes or num_kv_blocks, or on a GPU "
                              "gpu_memory_utilization"));
  }
}

int64_t KvCache::block_bytes(const Backend& backend, const KvCacheShape& shape) {
  // The difference leaves out what a layer takes once, whatever its number of blocks.
  return bytes_of(backend, shape, 2) - bytes_of(backend, shape, 1);
}

}  // namespace specdec
