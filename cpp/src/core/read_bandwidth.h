// How fast threads read memory: the ceiling of decoding, which reads all weights in each step.
#pragma once

#include <cstddef>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace specdec {

// A buffer on huge pages, at least one piece of 64 KiB, each part of it first written by the thread
// of the pool that is to read it.
Buffer make_probe_buffer(size_t size_bytes, ThreadPool& pool);

// A buffer that is read through from end to end by all threads of a pool.
class ReadBandwidth {
 public:
  ReadBandwidth(size_t footprint_bytes, ThreadPool& pool);

  double read_seconds();  // one pass
  size_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  ThreadPool& pool_;
};

}  // namespace specdec
