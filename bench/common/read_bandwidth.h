// The ceiling of memory-bound kernels: how fast this machine's threads read memory.
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

}  // namespace specdec::bench
