// Launchers of emulation_kernels.cu: kernels that are right, and kernels with planted faults.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct EmulationKernels {
  // sums[b] = values[b * count] + ... + values[b * count + count - 1]
  void (*sum)(Stream& stream, const float* values, float* sums, int num_blocks, int count);
  // values[i] += 1, launched to overlap what is before it
  void (*increment)(Stream& stream, int* values, int count);
  // to[i] = from[i], read ahead of what is before the kernel before it, as `declared` or not
  void (*copy_ahead)(Stream& stream, const int* from, int* to, int count, bool declared);
  // does nothing; the kernel after it may start before this one has waited, or only then, as
  // `declared` says or not
  void (*pass_on)(Stream& stream, bool early, bool declared);
  // flags[b] = how many of the blocks before b it saw done; each waits for the one before it
  void (*chain)(Stream& stream, uint32_t* flags, int num_blocks, bool cooperative);
  // to[i] = from[i] for 16-byte pieces, through cp.async and through bulk copies
  void (*copy_async)(Stream& stream, const float* from, float* to, int count);
  void (*copy_bulk)(Stream& stream, const float* from, float* to, int count);
  // does nothing, launched like this
  void (*idle)(Stream& stream, const LaunchConfig& config);
};

// What wants its addresses to be multiples of 8, 16 or 1024.
enum class AlignedAccess {
  kLoad,           // of a float4
  kStore,          // of an int2
  kLoadStreaming,  // and all below: the wrappers of ptx.cuh
  kCopyAsyncFrom,
  kCopyAsyncTo,
  kBulkCopyFrom,
  kBulkCopyTo,
  kMbarrier,
  kLdmatrix,
  kWgmmaTile
};

// Only on the emulated device: a GPU would hang, or do the wrong thing silently.
struct FaultyKernels {
  // Right but for a missing __syncthreads: to[i] = from[count - 1 - i], one block.
  void (*reverse_without_barrier)(Stream& stream, const float* from, float* to, int count);
  void (*write_past_end)(Stream& stream, float* values, int count);
  // Prefetches `count` floats.
  void (*prefetch)(Stream& stream, const float* values, int count);
  void (*write_past_shared)(Stream& stream);
  void (*different_warp_operations)(Stream& stream);
  void (*lane_that_never_comes)(Stream& stream);
  void (*mask_without_own_lane)(Stream& stream);
  void (*barrier_of_too_few)(Stream& stream);
  // values[i] += 1, but values[i] is read before wait_for_previous.
  void (*read_before_previous)(Stream& stream, int* values, int count);
  void (*never_waits_for_previous)(Stream& stream);
  // The copies of EmulationKernels without their wait.
  void (*copy_async_without_wait)(Stream& stream, const float* from, float* to, int count);
  void (*copy_bulk_without_wait)(Stream& stream, const float* from, float* to, int count);
  void (*mbarrier_without_arrival)(Stream& stream);
  // At 4 bytes past `data` [64 bytes], or past shared memory's begin.
  void (*misaligned)(Stream& stream, float* data, AlignedAccess access);
};

namespace native {
EmulationKernels emulation_kernels();
}
namespace emulated {
EmulationKernels emulation_kernels();
FaultyKernels faulty_kernels();
}  // namespace emulated

}  // namespace specdec::cuda
