// The ceilings of memory-bound kernels: how fast this machine's threads read and copy memory.
#pragma once

#include <cstddef>

#include "core/buffer.h"
#include "core/read_bandwidth.h"
#include "core/thread_pool.h"

namespace specdec::bench {

// Two buffers of half the footprint, one copied over the other.
class CopyBandwidth {
 public:
  CopyBandwidth(size_t footprint_bytes, ThreadPool& pool);

  double copy_seconds();                                         // one pass
  size_t moved_bytes() const { return 2 * from_.size_bytes(); }  // read and written in it

 private:
  Buffer from_;
  Buffer to_;
  ThreadPool& pool_;
};

}  // namespace specdec::bench
