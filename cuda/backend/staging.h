// Copies small host arrays to the device, through pinned memory and in the stream's order. A step's
// arrays stay valid until the step after the next begins.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

class Staging {
 public:
  Staging(Device& device, Stream& stream);

  // Begins a step, which reuses the memory of the step before the last: waits for that step's
  // copies.
  void begin_step();

  // Copies to device memory that the caller owns.
  void upload_to(void* device, const void* values, size_t size_bytes);

  // Returns a device copy of `values`, or null if they are empty.
  template <class T>
  const T* upload(std::span<const T> values) {
    return static_cast<const T*>(upload_bytes(values.data(), values.size_bytes()));
  }

 private:
  struct Chunk {
    Buffer pinned;
    Buffer device;
  };
  struct Arena {
    std::vector<Chunk> chunks;
    size_t chunk = 0;  // in use
    size_t used = 0;   // bytes used of that chunk
    std::unique_ptr<Event> copied;
    bool in_flight = false;
  };

  struct Bytes {
    char* pinned = nullptr;
    char* device = nullptr;
  };
  Bytes take(size_t size_bytes);
  const void* upload_bytes(const void* values, size_t size_bytes);

  Device& device_;
  Stream& stream_;
  std::array<Arena, 2> arenas_;
  int current_ = 0;
};

}  // namespace specdec::cuda
