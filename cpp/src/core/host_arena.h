// Buffers that are many and each too small for huge pages of its own: cut one after the other from
// large regions that have them.
#pragma once

#include <cstddef>
#include <memory>

#include "core/buffer.h"

namespace specdec {

// Not for buffers that come and go: a region is freed once none of its buffers is left. Buffers may
// outlive the arena.
class HostArena {
 public:
  // Zero-filled and 64-byte aligned, like Buffer::host. Throws OutOfMemory naming `purpose`.
  Buffer allocate(size_t size_bytes, const char* purpose);

 private:
  std::shared_ptr<Buffer> region_;
  size_t used_bytes_ = 0;  // of region_
};

}  // namespace specdec
