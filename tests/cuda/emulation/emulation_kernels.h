// Launchers of emulation_kernels.cu: correct kernels, and kernels with planted faults.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

struct EmulationKernels {
  // sums[b] = values[b * count] + ... + values[b * count + count - 1]
  void (*sum)(Stream& stream, const float* values, float* sums, int num_blocks, int count);
  // values[i] += 1, launched to overlap earlier work
  void (*increment)(Stream& stream, int* values, int count);
  // to[i] = from[i], read before the wait, with LaunchConfig::reads_before_wait if `declared`
  void (*copy_ahead)(Stream& stream, const int* from, int* to, int count, bool declared);
  // Does nothing. Lets the next kernel start before its own wait if `early`, else after it;
  // `declared` sets LaunchConfig::lets_next_start_early.
  void (*pass_on)(Stream& stream, bool early, bool declared);
  // flags[b] = the number of blocks before b that b saw done; each block waits for the one before
  // it
  void (*chain)(Stream& stream, uint32_t* flags, int num_blocks, bool cooperative);
  // to[i] = from[i] for 16-byte pieces, through cp.async and through bulk copies
  void (*copy_async)(Stream& stream, const float* from, float* to, int count);
  void (*copy_bulk)(Stream& stream, const float* from, float* to, int count);
  // does nothing, launched like this
  void (*idle)(Stream& stream, const LaunchConfig& config);
};

// Accesses that need addresses that are multiples of 8, 16 or 1024.
enum class AlignedAccess {
  kLoad,           // of a float4
  kStore,          // of an int2
  kLoadStreaming,  // this and the following: wrappers of ptx.cuh
  kCopyAsyncFrom,
  kCopyAsyncTo,
  kBulkCopyFrom,
  kBulkCopyTo,
  kMbarrier,
  kLdmatrix,
  kWgmmaTile
};

// Only for the emulated device: a GPU would hang, or be wrong silently.
struct FaultyKernels {
  // A __syncthreads is missing: to[i] = from[count - 1 - i], one block.
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
  // Accesses 4 bytes past `data` [64 bytes], or past the start of shared memory.
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
