// Many buffers that are each too small for huge pages of their own. The arena cuts them one after
// the other from large regions of huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "core/buffer.h"

namespace specdec {

// The arena does not suit buffers that come and go: it frees a region only when none of the
// region's buffers is left. Buffers may outlive the arena.
class HostArena {
 public:
  // Zero-filled and 64-byte aligned, like Buffer::host. Throws OutOfMemory naming `purpose`.
  Buffer allocate(size_t size_bytes, const char* purpose);

 private:
  std::shared_ptr<Buffer> region_;
  size_t used_bytes_ = 0;  // of region_
};

}  // namespace specdec
