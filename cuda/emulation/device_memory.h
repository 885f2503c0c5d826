// The memory of an emulated device. It is counted, every address can be looked up, and writes past
// a piece are found. The host cannot reach it while no work of the device runs: touching it raises
// SIGSEGV, as with a GPU. (With the address sanitizer it is plain memory of exact size that the
// host can always reach.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
  // Host memory that kernels may be given.
  void* allocate_pinned(size_t size_bytes, const char* purpose);
  void free_pinned(void* data);
  // Zeroed memory that several devices write to; it is none of their pieces.
  static std::shared_ptr<std::byte> allocate_for_peers(size_t size_bytes, const char* purpose);
  // Kernels may be given such memory between the two.
  void enter_peer(const std::byte* data, size_t size_bytes);
  void leave_peer(const std::byte* data);

  // While one of these lives, memory is within reach.
  class Access {
   public:
    explicit Access(DeviceMemory& memory) : memory_(memory) { memory_.reach(true); }
    ~Access() { memory_.reach(false); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceMemory& memory_;
  };

  // Whether the bytes lie in one piece of device memory, or of pinned memory.
  bool contains(const void* data, size_t size_bytes) const;
  bool is_pinned(const void* data, size_t size_bytes) const;
  // Whether this is a pointer to memory of the process that kernels may not be given. (Always false
  // with the address sanitizer: two small integers side by side may look like a pointer into the
  // sanitizer's own memory.)
  bool is_host_pointer(const void* data) const;
  // Within an Access: names the first piece whose surroundings were written to; empty when there is
  // none. (The address sanitizer reports such writes itself.)
  std::string find_overrun() const;

 private:
  struct Piece {
    size_t size_bytes;
    std::string purpose;
  };
  using Pieces = std::map<const unsigned char*, Piece>;
  // Null when there is none. A piece's end counts as in it.
  static const Pieces::value_type* find(const Pieces& pieces, const void* data);
  static bool is_in_one(const Pieces& pieces, const void* data, size_t size_bytes);
  static bool is_intact(const unsigned char* data, size_t size_bytes);
  void reach(bool within);

  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0;
  Pieces pieces_;
  Pieces pinned_;
  Pieces peers_;
};

}  // namespace specdec::cuda::emulation
