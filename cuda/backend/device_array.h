// Typed arrays of device memory, allocated and owned by a DeviceLayout.
#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

// An array that a DeviceLayout owns. Kernels take it as a pointer, null while it has no memory.
template <class T>
struct DeviceArray {
  T* data = nullptr;
  size_t size = 0;  // elements

  operator T*() const { return data; }
  size_t size_bytes() const { return size * sizeof(T); }
  size_t missing_bytes() const { return data == nullptr ? size_bytes() : 0; }
};

class DeviceLayout {
 public:
  explicit DeviceLayout(Device& device) : device_(device) {}

  // Zeroed memory for `size` elements; none for 0.
  template <class T>
  DeviceArray<T> array(size_t size, const char* purpose = "device steps") {
    DeviceArray<T> array = {.size = size};
    reserve(array, purpose);
    return array;
  }
  // The same in pinned host memory, which the device writes to.
  template <class T>
  DeviceArray<T> pinned(size_t size, const char* purpose = "device steps") {
    return {own<T>(device_.allocate_pinned(size * sizeof(T), purpose)), size};
  }
  // Allocates an array's memory, unless it has some.
  template <class T>
  void reserve(DeviceArray<T>& array, const char* purpose) {
    if (array.missing_bytes() == 0) return;
    array.data = own<T>(device_.allocate(array.size_bytes(), purpose));
  }
  // Replaces an array that is shorter than `size` by a longer one; the contents are lost. Returns
  // whether it did.
  template <class T>
  bool grow(DeviceArray<T>& array, size_t size, const char* purpose) {
    if (array.size >= size) return false;
    std::erase_if(buffers_, [&](const Buffer& buffer) { return buffer.data() == array.data; });
    array = this->array<T>(std::bit_ceil(size), purpose);
    return true;
  }

 private:
  template <class T>
  T* own(Buffer buffer) {
    return buffers_.emplace_back(std::move(buffer)).template as<T>();
  }

  Device& device_;
  std::vector<Buffer> buffers_;
};

}  // namespace specdec::cuda
