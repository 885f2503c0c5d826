// Scratch memory of an operation on the device. It grows on demand.
#pragma once

#include <algorithm>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

class Workspace {
 public:
  Workspace(Device& device, Stream& stream, const char* purpose)
      : device_(device), stream_(stream), purpose_(purpose) {}

  // At least `count` elements, zeroed when first allocated. May grow only outside of captures, so
  // the largest step must have run before.
  template <class T>
  T* get(size_t count) {
    const size_t size_bytes = count * sizeof(T);
    if (buffers_.empty() || buffers_.back().size_bytes() < size_bytes) {
      SPECDEC_CHECK(!stream_.is_capturing());
      const size_t last = buffers_.empty() ? 0 : buffers_.back().size_bytes();
      buffers_.push_back(device_.allocate(std::max(size_bytes, 2 * last), purpose_));
    }
    return buffers_.back().as<T>();
  }

 private:
  Device& device_;
  Stream& stream_;
  const char* purpose_;
  std::vector<Buffer> buffers_;  // all are kept: graphs may name earlier ones
};

}  // namespace specdec::cuda
