// Kernels that measure a GPU and not the library: reading and copying memory, doing nothing,
// waiting for each other.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct ReadProbe {
  const void* data = nullptr;  // [num_bytes], read through once
  int64_t num_bytes = 0;       // a multiple of 16
  uint32_t* sink = nullptr;    // [1], written only if the data has an unlikely sum
  int num_blocks = 1;
  // It begins to read while the launch before still runs: as much as it can keep in flight, then it
  // waits.
  bool overlaps_previous = false;
  bool lets_next_start_early = false;  // before it waits itself; otherwise after
};

struct RereadProbe {
  const void* data = nullptr;  // [num_bytes], read through in every round
  int64_t num_bytes = 0;       // a multiple of 16
  uint32_t* sink = nullptr;    // [1], written only if the data has an unlikely sum
  int num_rounds = 1;          // a block reads another block's part in each
  int num_blocks = 1;
};

struct CopyProbe {
  const void* from = nullptr;  // [num_bytes]
  void* to = nullptr;          // [num_bytes]
  int64_t num_bytes = 0;
  int num_blocks = 1;
};

struct EmptyProbe {
  int num_blocks = 1;
  int num_threads = 128;
  bool overlaps_previous = false;
};

struct BarrierProbe {
  uint32_t* arrivals = nullptr;  // [1], zero before the launch
  int num_barriers = 1;          // that all blocks meet at, one after the other
  int num_blocks = 1;            // all resident at once
};

struct ProbeKernels {
  void (*read)(Stream&, const ReadProbe&) = nullptr;
  void (*reread)(Stream&, const RereadProbe&) = nullptr;
  void (*copy)(Stream&, const CopyProbe&) = nullptr;
  void (*empty)(Stream&, const EmptyProbe&) = nullptr;
  void (*barriers)(Stream&, const BarrierProbe&) = nullptr;
};

namespace native {
ProbeKernels probe_kernels();  // null without CUDA
}
namespace emulated {
ProbeKernels probe_kernels();  // null without emulation
}

}  // namespace specdec::cuda
