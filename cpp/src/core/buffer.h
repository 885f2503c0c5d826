// Owned memory. Host buffers are 64-byte aligned and ask for huge pages when they are large.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

namespace specdec {

class Buffer {
 public:
  using Release = std::function<void(void* data, size_t size_bytes)>;

  Buffer() = default;
  Buffer(void* data, size_t size_bytes, Release release)
      : data_(data), size_bytes_(size_bytes), release_(std::move(release)) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  // Zero-filled host memory. Throws OutOfMemory naming `purpose`.
  static Buffer host(size_t size_bytes, const char* purpose);

  void* data() { return data_; }
  const void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool empty() const { return size_bytes_ == 0; }

  template <class T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(release_, other.release_);
  }
  void reset() noexcept {
    if (data_ != nullptr && release_) release_(data_, size_bytes_);
    data_ = nullptr;
    size_bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  Release release_;
};

}  // namespace specdec
