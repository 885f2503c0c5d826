#include "bench/kernels/cuda_probes.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // 16-byte loads of a thread
constexpr uint32_t kUnlikely = 0x5eed5eedu;

struct Range {
  int64_t begin;
  int64_t end;
  int64_t stride;
};

// The 16-byte words of this thread in a block's part, which is contiguous.
__device__ __forceinline__ Range words_of_thread(int64_t num_bytes, unsigned block) {
  const int64_t words = num_bytes / 16;
  const int64_t part = (words + gridDim.x - 1) / gridDim.x;
  const int64_t begin = part * block;
  const int64_t end = begin + part < words ? begin + part : words;
  return {begin + threadIdx.x, end, blockDim.x};
}

__device__ __forceinline__ void load_words(uint4 (&values)[kInFlight], const uint4* data,
                                           int64_t word, const Range& range) {
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    values[i] = make_uint4(0, 0, 0, 0);
    if (word + i * range.stride < range.end) {
      values[i] = ptx::load_streaming(data + word + i * range.stride);
    }
  }
}
__device__ __forceinline__ uint32_t sum_of(const uint4 (&values)[kInFlight]) {
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  return sum;
}

// As in products: loads that fit into registers are issued before the kernel waits.
template <bool kStartsNextEarly>
__global__ void __launch_bounds__(kThreads) read_kernel(ReadProbe probe) {
  if constexpr (kStartsNextEarly) ptx::let_next_start();
  const uint4* data = static_cast<const uint4*>(probe.data);
  const Range range = words_of_thread(probe.num_bytes, blockIdx.x);
  uint4 values[kInFlight];
  int64_t word = range.begin;
  load_words(values, data, word, range);
  ptx::wait_for_previous();
  if constexpr (!kStartsNextEarly) ptx::let_next_start();
  uint32_t sum = sum_of(values);
  for (word += kInFlight * range.stride; word < range.end; word += kInFlight * range.stride) {
    load_words(values, data, word, range);
    sum += sum_of(values);
  }
  if (sum == kUnlikely) *probe.sink = sum;
}

// Reads data that fits into L2; loads bypass L1.
__global__ void __launch_bounds__(kThreads) reread_kernel(RereadProbe probe) {
  const uint4* data = static_cast<const uint4*>(probe.data);
  uint32_t sum = 0;
  for (int round = 0; round < probe.num_rounds; ++round) {
    const Range range = words_of_thread(probe.num_bytes, (blockIdx.x + round) % gridDim.x);
    for (int64_t word = range.begin; word < range.end; word += kInFlight * range.stride) {
      uint4 values[kInFlight];
      load_words(values, data, word, range);
      sum += sum_of(values);
    }
  }
  if (sum == kUnlikely) *probe.sink = sum;
}

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyProbe probe) {
  const uint4* from = static_cast<const uint4*>(probe.from);
  uint4* to = static_cast<uint4*>(probe.to);
  const Range range = words_of_thread(probe.num_bytes, blockIdx.x);
  int64_t word = range.begin;
  for (; word + (kInFlight - 1) * range.stride < range.end; word += kInFlight * range.stride) {
    uint4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      values[i] = ptx::load_streaming(from + word + i * range.stride);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) to[word + i * range.stride] = values[i];
  }
  for (; word < range.end; word += range.stride) to[word] = ptx::load_streaming(from + word);
}

__global__ void empty_kernel() {
  ptx::wait_for_previous();
  ptx::let_next_start();
}

// Every block adds one and waits until all blocks have, repeatedly.
__global__ void barrier_kernel(BarrierProbe probe) {
  for (uint32_t round = 1; round <= static_cast<uint32_t>(probe.num_barriers); ++round) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(probe.arrivals, 1u);
      while (ptx::load_acquire(probe.arrivals) < round * gridDim.x) {
      }
    }
    __syncthreads();
  }
}

LaunchConfig blocks(int num_blocks, int num_threads) {
  return {.grid = {static_cast<unsigned>(num_blocks)},
          .block = {static_cast<unsigned>(num_threads)}};
}

void launch_read(Stream& stream, const ReadProbe& probe) {
  LaunchConfig config = blocks(probe.num_blocks, kThreads);
  config.overlaps_previous = probe.overlaps_previous;
  config.lets_next_start_early = probe.lets_next_start_early;
  launch("read_probe", stream, probe.lets_next_start_early ? read_kernel<true> : read_kernel<false>,
         config, probe);
}

void launch_reread(Stream& stream, const RereadProbe& probe) {
  launch("reread_probe", stream, reread_kernel, blocks(probe.num_blocks, kThreads), probe);
}

void launch_copy(Stream& stream, const CopyProbe& probe) {
  launch("copy_probe", stream, copy_kernel, blocks(probe.num_blocks, kThreads), probe);
}

void launch_empty(Stream& stream, const EmptyProbe& probe) {
  LaunchConfig config = blocks(probe.num_blocks, probe.num_threads);
  config.overlaps_previous = probe.overlaps_previous;
  launch("empty_probe", stream, empty_kernel, config);
}

void launch_barriers(Stream& stream, const BarrierProbe& probe) {
  LaunchConfig config = blocks(probe.num_blocks, 256);
  config.cooperative = true;
  launch("barrier_probe", stream, barrier_kernel, config, probe);
}

}  // namespace

ProbeKernels probe_kernels() {
  return {.read = launch_read,
          .reread = launch_reread,
          .copy = launch_copy,
          .empty = launch_empty,
          .barriers = launch_barriers};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
