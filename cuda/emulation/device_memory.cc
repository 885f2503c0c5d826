#include "cuda/emulation/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda::emulation {
namespace {

constexpr size_t kAlignment = 256;  // what cudaMalloc promises
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGuardBytes = 0;
#else
constexpr size_t kGuardBytes = kAlignment;  // before and after each piece
#endif
constexpr unsigned char kGuard = 0xa5;

bool is_guard(const unsigned char* begin) {
  return std::all_of(begin, begin + kGuardBytes, [](unsigned char byte) { return byte == kGuard; });
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const auto& [data, piece] : pieces_) {
    std::free(const_cast<unsigned char*>(data) - kGuardBytes);
  }
}

void* DeviceMemory::allocate(size_t size_bytes, const char* purpose) {
  if (static_cast<int64_t>(size_bytes) > free_bytes()) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes of device memory for ",
                              purpose, ": ", free_bytes(), " of ", capacity_bytes_, " are free"));
  }
  void* begin = nullptr;
  if (posix_memalign(&begin, kAlignment, size_bytes + 2 * kGuardBytes) != 0) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
  auto* data = static_cast<unsigned char*>(begin) + kGuardBytes;
  std::memset(data - kGuardBytes, kGuard, kGuardBytes);
  std::memset(data, 0, size_bytes);
  std::memset(data + size_bytes, kGuard, kGuardBytes);
  used_bytes_ += static_cast<int64_t>(size_bytes);
  pieces_[data] = {size_bytes, purpose};
  return data;
}

void DeviceMemory::free(void* data) {
  const auto piece = pieces_.find(static_cast<unsigned char*>(data));
  SPECDEC_CHECK(piece != pieces_.end());
  used_bytes_ -= static_cast<int64_t>(piece->second.size_bytes);
  pieces_.erase(piece);
  std::free(static_cast<unsigned char*>(data) - kGuardBytes);
}

bool DeviceMemory::contains(const void* data, size_t size_bytes) const {
  const auto* begin = static_cast<const unsigned char*>(data);
  auto piece = pieces_.upper_bound(begin);
  if (piece == pieces_.begin()) return false;
  --piece;
  return begin + size_bytes <= piece->first + piece->second.size_bytes;
}

bool DeviceMemory::is_intact(const unsigned char* data, size_t size_bytes) {
  return is_guard(data - kGuardBytes) && is_guard(data + size_bytes);
}

std::string DeviceMemory::find_overrun() const {
  for (const auto& [data, piece] : pieces_) {
    if (!is_intact(data, piece.size_bytes)) {
      return str_cat("the ", piece.size_bytes, " bytes of ", piece.purpose);
    }
  }
  return {};
}

}  // namespace specdec::cuda::emulation
