#include "cuda/emulation/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/host_memory.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda::emulation {
namespace {

constexpr size_t kAlignment = 256;  // as cudaMalloc's
constexpr unsigned char kGuard = 0xa5;

#if defined(__SANITIZE_ADDRESS__)

constexpr size_t kGuardBytes = 0;

void* map(size_t size_bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, size_bytes) != 0) return nullptr;
  std::memset(data, 0, size_bytes);
  return data;
}
void unmap(void* data, size_t) { std::free(data); }
void set_reach(void*, size_t, bool) {}

#else

constexpr size_t kGuardBytes = kAlignment;  // before and after each allocation

size_t whole_pages(size_t size_bytes) {
  return (size_bytes + 2 * kGuardBytes + page_bytes() - 1) / page_bytes() * page_bytes();
}
void* map(size_t size_bytes) {
  void* begin = mmap(nullptr, whole_pages(size_bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  auto* data = static_cast<unsigned char*>(begin) + kGuardBytes;
  std::memset(data - kGuardBytes, kGuard, kGuardBytes);
  std::memset(data + size_bytes, kGuard, kGuardBytes);
  return data;
}
void unmap(void* data, size_t size_bytes) {
  munmap(static_cast<unsigned char*>(data) - kGuardBytes, whole_pages(size_bytes));
}
void set_reach(void* data, size_t size_bytes, bool within) {
  const int protection = within ? PROT_READ | PROT_WRITE : PROT_NONE;
  SPECDEC_CHECK_EQ(mprotect(static_cast<unsigned char*>(data) - kGuardBytes,
                            whole_pages(size_bytes), protection),
                   0);
}

#endif

bool is_guard(const unsigned char* begin) {
  return std::all_of(begin, begin + kGuardBytes, [](unsigned char byte) { return byte == kGuard; });
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const Pieces* pieces : {&pieces_, &pinned_}) {
    for (const auto& [data, piece] : *pieces) {
      unmap(const_cast<unsigned char*>(data), piece.size_bytes);
    }
  }
}

void* DeviceMemory::allocate(size_t size_bytes, const char* purpose) {
  if (static_cast<int64_t>(size_bytes) > free_bytes()) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes of device memory for ",
                              purpose, ": ", free_bytes(), " of ", capacity_bytes_, " are free"));
  }
  void* data = map(size_bytes);
  if (data == nullptr) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
  set_reach(data, size_bytes, false);
  used_bytes_ += static_cast<int64_t>(size_bytes);
  pieces_[static_cast<unsigned char*>(data)] = {size_bytes, purpose};
  return data;
}

void DeviceMemory::free(void* data) {
  const auto piece = pieces_.find(static_cast<unsigned char*>(data));
  SPECDEC_CHECK(piece != pieces_.end());
  used_bytes_ -= static_cast<int64_t>(piece->second.size_bytes);
  unmap(data, piece->second.size_bytes);
  pieces_.erase(piece);
}

void DeviceMemory::reach(bool within) {
  for (const auto& [data, piece] : pieces_) {
    set_reach(const_cast<unsigned char*>(data), piece.size_bytes, within);
  }
}

const DeviceMemory::Pieces::value_type* DeviceMemory::find(const Pieces& pieces, const void* data) {
  const auto* address = static_cast<const unsigned char*>(data);
  auto piece = pieces.upper_bound(address);
  if (piece == pieces.begin()) return nullptr;
  --piece;
  return address <= piece->first + piece->second.size_bytes ? &*piece : nullptr;
}

bool DeviceMemory::is_in_one(const Pieces& pieces, const void* data, size_t size_bytes) {
  const auto* piece = find(pieces, data);
  return piece != nullptr && static_cast<const unsigned char*>(data) + size_bytes <=
                                 piece->first + piece->second.size_bytes;
}

bool DeviceMemory::contains(const void* data, size_t size_bytes) const {
  return is_in_one(pieces_, data, size_bytes);
}

bool DeviceMemory::is_pinned(const void* data, size_t size_bytes) const {
  return is_in_one(pinned_, data, size_bytes);
}

bool DeviceMemory::is_host_pointer([[maybe_unused]] const void* data) const {
#if defined(__SANITIZE_ADDRESS__)
  return false;
#else
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address >> 32 == 0 || address >> 47 != 0) return false;  // no pointer
  for (const Pieces* pieces : {&pieces_, &pinned_, &peers_}) {
    if (find(*pieces, data) != nullptr) return false;
  }
  unsigned char residency;
  return mincore(reinterpret_cast<void*>(address / page_bytes() * page_bytes()), 1, &residency) ==
         0;
#endif
}

void* DeviceMemory::allocate_pinned(size_t size_bytes, const char* purpose) {
  void* data = map(size_bytes);
  if (data == nullptr) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
  pinned_[static_cast<unsigned char*>(data)] = {size_bytes, purpose};
  return data;
}

void DeviceMemory::free_pinned(void* data) {
  const auto piece = pinned_.find(static_cast<unsigned char*>(data));
  SPECDEC_CHECK(piece != pinned_.end());
  unmap(data, piece->second.size_bytes);
  pinned_.erase(piece);
}

std::shared_ptr<std::byte> DeviceMemory::allocate_for_peers(size_t size_bytes,
                                                            const char* purpose) {
  void* data = map(size_bytes);
  if (data == nullptr) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
  return {static_cast<std::byte*>(data),
          [size_bytes](std::byte* allocated) { unmap(allocated, size_bytes); }};
}

void DeviceMemory::enter_peer(const std::byte* data, size_t size_bytes) {
  peers_[reinterpret_cast<const unsigned char*>(data)] = {size_bytes, "memory of another rank"};
}

void DeviceMemory::leave_peer(const std::byte* data) {
  peers_.erase(reinterpret_cast<const unsigned char*>(data));
}

bool DeviceMemory::is_intact(const unsigned char* data, size_t size_bytes) {
  return is_guard(data - kGuardBytes) && is_guard(data + size_bytes);
}

std::string DeviceMemory::find_overrun() const {
  for (const Pieces* pieces : {&pieces_, &pinned_}) {
    for (const auto& [data, piece] : *pieces) {
      if (!is_intact(data, piece.size_bytes)) {
        return str_cat("the ", piece.size_bytes, " bytes of ", piece.purpose);
      }
    }
  }
  return {};
}

}  // namespace specdec::cuda::emulation
