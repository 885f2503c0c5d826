#include "runtime/feature_cache.h"

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {

FeatureCache::FeatureCache(Backend& backend, int width, int block_size, int num_blocks) {
  SPECDEC_CHECK_GT(width, 0);
  const int64_t num_slots = (int64_t{num_blocks} + 1) * block_size + 1;
  const int64_t size_bytes = num_slots * block_bytes(backend, width, /*block_size=*/1);
  try {
    buffer_ = backend.allocate(static_cast<size_t>(size_bytes), "the features of cached tokens");
  } catch (const OutOfMemory&) {
    throw OutOfMemory(str_cat("no memory for the features of ", num_blocks, " KV blocks (",
                              size_bytes,
                              " bytes): lower kv_cache_memory_bytes or num_kv_blocks, or on a GPU "
                              "gpu_memory_utilization"));
  }
  rows_ = {.rows = buffer_.data(), .num_slots = num_slots, .width = width};
}

int64_t FeatureCache::block_bytes(const Backend& backend, int width, int block_size) {
  return int64_t{block_size} * width * static_cast<int64_t>(size_of(backend.act_dtype()));
}

}  // namespace specdec
