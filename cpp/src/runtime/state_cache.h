// Storage of the states of recurrent layers, and of the records of draft rows: one allocation of
// each kind a layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace specdec {

class StateCache {
 public:
  // `layers`: what each layer keeps, empty where it is not recurrent. Throws OutOfMemory saying
  // what to lower.
  StateCache(Backend& backend, std::span<const StateShape> layers, int num_slots, int num_records);

  std::span<const LayerStateView> layers() const { return layers_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Bytes of one state, and of one record, over all layers.
  static int64_t slot_bytes(std::span<const StateShape> layers);
  static int64_t record_bytes(std::span<const StateShape> layers);

 private:
  float* allocate(Backend& backend, int64_t count, int64_t size);

  std::vector<Buffer> buffers_;
  std::vector<LayerStateView> layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace specdec
