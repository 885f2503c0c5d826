// Values and arrays as bytes, for another process of the same build on a machine alike.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/check.h"

namespace specdec {

// Arrays begin at multiples of this.
inline constexpr size_t kMessageAlignment = 8;

class MessageWriter {
 public:
  // Appends to the bytes.
  explicit MessageWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <class T>
  void put(const T& value) {
    put_all(std::span(&value, 1));
  }
  // The elements alone: the reader knows how many there are.
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kMessageAlignment);
    const size_t begin = bytes_.size();
    const size_t end = begin + values.size_bytes();
    bytes_.resize((end + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment);
    if (!values.empty()) std::memcpy(&bytes_[begin], values.data(), values.size_bytes());
  }

 private:
  std::vector<std::byte>& bytes_;
};

// Hands out views into the message, which must outlive them.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool at_end() const { return bytes_.empty(); }

  template <class T>
  T get() {
    return get_all<T>(1).front();
  }
  template <class T>
  std::span<const T> get_all(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kMessageAlignment);
    const size_t size = count * sizeof(T);
    const size_t taken = (size + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
    SPECDEC_CHECK_LE(taken, bytes_.size());
    const auto* values = reinterpret_cast<const T*>(bytes_.data());
    bytes_ = bytes_.subspan(taken);
    return {values, count};
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace specdec
