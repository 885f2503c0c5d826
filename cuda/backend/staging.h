// Small arrays of the host on their way to the device: they are written to pinned memory and copied
// in the stream's order. What a step staged stays valid until the step after the next begins.
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

  // Begins a step, which uses the memory of the step before the last: waits for that one's copies.
  void begin_step();

  // Copies to memory of the device that the caller owns.
  void upload_to(void* device, const void* values, size_t size_bytes);

  // A device copy of `values`; null for none.
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
    size_t used = 0;   // bytes of it
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
