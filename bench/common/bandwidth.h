// The ceilings of memory-bound kernels: how fast this machine's threads read and copy memory.
#pragma once

#include <cstddef>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace specdec::bench {

// A buffer on huge pages that is read through from end to end by all threads of a pool.
class ReadBandwidth {
 public:
  ReadBandwidth(size_t footprint_bytes, ThreadPool& pool);

  double read_seconds();  // one pass
  size_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  ThreadPool& pool_;
};

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
