// Many buffers that are each too small for their own huge pages. The arena cuts them one after the
// other from large regions of huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "core/buffer.h"

namespace specdec {

// Not for buffers with varying lifetimes: the arena frees a region only when all of the region's
// buffers are gone. Buffers may outlive the arena.
class HostArena {
 public:
  // Zero-filled and 64-byte aligned, like Buffer::host. Throws OutOfMemory naming `purpose`.
  Buffer allocate(size_t size_bytes, const char* purpose);

 private:
  std::shared_ptr<Buffer> region_;
  size_t used_bytes_ = 0;  // of region_
};

}  // namespace specdec
