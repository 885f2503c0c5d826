#include "core/host_arena.h"

#include <algorithm>

namespace specdec {
namespace {

// Address space only, until it is written to.
constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;

}  // namespace

Buffer HostArena::allocate(size_t size_bytes, const char* purpose) {
  if (size_bytes == 0) return {};
  if (region_ == nullptr || size_bytes > region_->size_bytes() - used_bytes_) {
    region_ = std::make_shared<Buffer>(Buffer::host(std::max(size_bytes, kRegionBytes), purpose));
    used_bytes_ = 0;
  }
  char* data = region_->as<char>() + used_bytes_;
  const size_t left = region_->size_bytes() - used_bytes_;
  used_bytes_ += std::min((size_bytes + kAlignment - 1) / kAlignment * kAlignment, left);
  return Buffer(data, size_bytes, [region = region_](void*, size_t) {});
}

}  // namespace specdec
