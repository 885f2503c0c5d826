#include "runtime/state_cache.h"

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

int64_t bytes_of(int64_t elements) { return elements * static_cast<int64_t>(sizeof(float)); }

}  // namespace

StateCache::StateCache(Backend& backend, std::span<const StateShape> layers, int num_slots,
                       int num_records) {
  SPECDEC_CHECK_GT(num_slots, 0);
  try {
    for (const StateShape& shape : layers) {
      LayerStateView& layer = layers_.emplace_back(LayerStateView{.shape = shape});
      if (shape.empty()) continue;
      layer.tails = allocate(backend, num_slots, shape.tail_size());
      layer.matrices = allocate(backend, num_slots, shape.matrix_size());
      layer.conv_records = allocate(backend, num_records, shape.conv_channels);
      layer.records = allocate(backend, num_records, shape.record_size());
    }
  } catch (const OutOfMemory&) {
    const int64_t bytes = num_slots * slot_bytes(layers) + num_records * record_bytes(layers);
    throw OutOfMemory(str_cat("no memory for the states of recurrent layers (", bytes,
                              " bytes): lower max_num_seqs or kv_cache_memory_bytes"));
  }
}

float* StateCache::allocate(Backend& backend, int64_t count, int64_t size) {
  if (count * size == 0) return nullptr;
  const int64_t bytes = bytes_of(count * size);
  buffers_.push_back(backend.allocate(static_cast<size_t>(bytes), "the states of sequences"));
  size_bytes_ += bytes;
  return buffers_.back().as<float>();
}

int64_t StateCache::slot_bytes(std::span<const StateShape> layers) {
  int64_t size = 0;
  for (const StateShape& shape : layers) {
    if (!shape.empty()) size += shape.tail_size() + shape.matrix_size();
  }
  return bytes_of(size);
}

int64_t StateCache::record_bytes(std::span<const StateShape> layers) {
  int64_t size = 0;
  for (const StateShape& shape : layers) size += shape.conv_channels + shape.record_size();
  return bytes_of(size);
}

}  // namespace specdec
