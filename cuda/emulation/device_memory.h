// The memory of an emulated device: counted, checked for writes past its pieces, and known by
// address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace specdec::cuda::emulation {

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t free_bytes() const { return capacity_bytes_ - used_bytes_; }

  // Zeroed. Throws OutOfMemory naming `purpose`.
  void* allocate(size_t size_bytes, const char* purpose);
  void free(void* data);

  // Whether the bytes lie in one piece.
  bool contains(const void* data, size_t size_bytes) const;
  // Names the first piece whose surroundings were written to; empty when there is none. (With the
  // address sanitizer pieces have no surroundings of ours; it reports such writes itself.)
  std::string find_overrun() const;

 private:
  struct Piece {
    size_t size_bytes;
    std::string purpose;
  };
  static bool is_intact(const unsigned char* data, size_t size_bytes);

  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0;
  std::map<const unsigned char*, Piece> pieces_;
};

}  // namespace specdec::cuda::emulation
