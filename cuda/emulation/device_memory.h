// The memory of an emulated device. It counts bytes, looks up any address, and finds writes past an
// allocation. The host cannot reach it while no device work runs: touching it raises SIGSEGV, as
// with a GPU. (With the address sanitizer it is plain memory of exact size that the host can always
// reach.)
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
  // Zeroed memory that several devices write to; it belongs to none of them.
  static std::shared_ptr<std::byte> allocate_for_peers(size_t size_bytes, const char* purpose);
  // Kernels of this device may use such memory between enter and leave.
  void enter_peer(const std::byte* data, size_t size_bytes);
  void leave_peer(const std::byte* data);

  // The host can reach device memory while an Access lives.
  class Access {
   public:
    explicit Access(DeviceMemory& memory) : memory_(memory) { memory_.reach(true); }
    ~Access() { memory_.reach(false); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceMemory& memory_;
  };

  // Whether the bytes lie in one allocation of device memory, or of pinned memory.
  bool contains(const void* data, size_t size_bytes) const;
  bool is_pinned(const void* data, size_t size_bytes) const;
  // Whether `data` points to host memory that kernels must not use. (Always false with the address
  // sanitizer, to whose own memory two adjacent small integers may look like a pointer.)
  bool is_host_pointer(const void* data) const;
  // Names the first allocation with writes outside of it, or empty. Needs an Access. (The address
  // sanitizer reports such writes itself.)
  std::string find_overrun() const;

 private:
  struct Piece {
    size_t size_bytes;
    std::string purpose;
  };
  using Pieces = std::map<const unsigned char*, Piece>;
  // Null if there is none. An allocation's end counts as in it.
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
