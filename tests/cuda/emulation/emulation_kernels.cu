#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"
#include "tests/cuda/emulation/emulation_kernels.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr unsigned kThreads = 256;

LaunchConfig one_block(size_t shared_bytes = 0) {
  return {.grid = {1}, .block = {kThreads}, .shared_bytes = shared_bytes};
}

// Each block sums its elements, by shuffles in warps and then through shared memory.
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const float* values, float* sums, int count) {
  SPECDEC_SHARED_BYTES(shared);
  float* partial = reinterpret_cast<float*>(shared);  // [warps]
  const int begin = static_cast<int>(blockIdx.x) * count;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += values[begin + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (unsigned warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp];
  sums[blockIdx.x] = sum;
}

void sum(Stream& stream, const float* values, float* sums, int num_blocks, int count) {
  LaunchConfig config = one_block(kThreads / 32 * sizeof(float));
  config.grid.x = static_cast<unsigned>(num_blocks);
  launch("sum", stream, sum_kernel, config, values, sums, count);
}

__global__ void increment_kernel(int* values, int count) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) ++values[i];
}

void increment(Stream& stream, int* values, int count) {
  LaunchConfig config = one_block();
  config.overlaps_previous = true;
  launch("increment", stream, increment_kernel, config, values, count);
}

__global__ void copy_ahead_kernel(const int* from, int* to, int count) {
  const int i = static_cast<int>(threadIdx.x);
  const int value = i < count ? __ldcg(from + i) : 0;
  ptx::wait_for_previous();
  if (i < count) to[i] = value;
}

void copy_ahead(Stream& stream, const int* from, int* to, int count, bool declared) {
  LaunchConfig config = one_block();
  config.overlaps_previous = true;
  config.reads_before_wait = declared;
  launch("copy_ahead", stream, copy_ahead_kernel, config, from, to, count);
}

template <bool kEarly>
__global__ void pass_on_kernel() {
  if constexpr (kEarly) ptx::let_next_start();
  ptx::wait_for_previous();
  if constexpr (!kEarly) ptx::let_next_start();
}

void pass_on(Stream& stream, bool early, bool declared) {
  LaunchConfig config = one_block();
  config.overlaps_previous = true;
  config.lets_next_start_early = declared;
  launch("pass_on", stream, early ? pass_on_kernel<true> : pass_on_kernel<false>, config);
}

__global__ void chain_kernel(uint32_t* flags) {
  if (threadIdx.x != 0) return;
  uint32_t seen = 0;
  if (blockIdx.x > 0) {
    while (seen == 0) seen = ptx::load_acquire(&flags[blockIdx.x - 1]);
  }
  ptx::store_release(&flags[blockIdx.x], seen + 1);
}

void chain(Stream& stream, uint32_t* flags, int num_blocks, bool cooperative) {
  LaunchConfig config = one_block();
  config.grid.x = static_cast<unsigned>(num_blocks);
  config.cooperative = cooperative;
  launch("chain", stream, chain_kernel, config, flags);
}

template <bool kWaits>
__global__ void copy_async_kernel(const float* from, float* to, int count) {
  SPECDEC_SHARED_BYTES(shared);
  float* staged = reinterpret_cast<float*>(shared);  // [count]
  for (int i = 4 * static_cast<int>(threadIdx.x); i < count; i += 4 * kThreads) {
    ptx::copy_async_16(staged + i, from + i);
  }
  ptx::copy_async_commit();
  if constexpr (kWaits) ptx::copy_async_wait<0>();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = staged[i];
}

template <bool kWaits>
void copy_async(Stream& stream, const float* from, float* to, int count) {
  const LaunchConfig config = one_block(static_cast<size_t>(count) * sizeof(float));
  launch("copy_async", stream, copy_async_kernel<kWaits>, config, from, to, count);
}

template <bool kWaits>
__global__ void copy_bulk_kernel(const float* from, float* to, int count) {
#if defined(SPECDEC_EMULATED) || __CUDA_ARCH__ >= 900
  SPECDEC_SHARED_BYTES(shared);
  uint64_t* barrier = reinterpret_cast<uint64_t*>(shared);
  float* staged = reinterpret_cast<float*>(shared + 16);  // [count]
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int size_bytes = count * static_cast<int>(sizeof(float));
    ptx::mbarrier_arrive_expect(barrier, size_bytes);
    ptx::bulk_copy(staged, from, size_bytes, barrier);
  }
  if constexpr (kWaits) ptx::mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = staged[i];
#endif
}

template <bool kWaits>
void copy_bulk(Stream& stream, const float* from, float* to, int count) {
  const LaunchConfig config = one_block(16 + static_cast<size_t>(count) * sizeof(float));
  launch("copy_bulk", stream, copy_bulk_kernel<kWaits>, config, from, to, count);
}

__global__ void idle_kernel() {}

void idle(Stream& stream, const LaunchConfig& config) {
  launch("idle", stream, idle_kernel, config);
}

}  // namespace

EmulationKernels emulation_kernels() {
  return {.sum = sum,
          .increment = increment,
          .copy_ahead = copy_ahead,
          .pass_on = pass_on,
          .chain = chain,
          .copy_async = copy_async<true>,
          .copy_bulk = copy_bulk<true>,
          .idle = idle};
}

#ifdef SPECDEC_EMULATED
namespace {

void reverse_kernel(const float* from, float* to, int count) {
  SPECDEC_SHARED_BYTES(shared);
  float* staged = reinterpret_cast<float*>(shared);
  const int i = static_cast<int>(threadIdx.x);
  staged[i] = from[i];
  // A __syncthreads is missing here.
  to[i] = staged[count - 1 - i];
}

void reverse_without_barrier(Stream& stream, const float* from, float* to, int count) {
  LaunchConfig config = one_block(static_cast<size_t>(count) * sizeof(float));
  config.block.x = static_cast<unsigned>(count);
  launch("reverse", stream, reverse_kernel, config, from, to, count);
}

void write_past_end(Stream& stream, float* values, int count) {
  void (*kernel)(float*, int) = [](float* out, int size) {
    if (threadIdx.x == 0) out[size] = 1.0f;
  };
  launch("write_past_end", stream, kernel, one_block(), values, count);
}

void prefetch(Stream& stream, const float* values, int count) {
  void (*kernel)(const float*, int) = [](const float* from, int num) {
    if (threadIdx.x == 0) ptx::prefetch_to_l2(from, num * 4);
  };
  launch("prefetch", stream, kernel, one_block(), values, count);
}

void write_past_shared(Stream& stream) {
  void (*kernel)() = [] {
    SPECDEC_SHARED_BYTES(shared);
    shared[threadIdx.x] = 1;
  };
  launch("write_past_shared", stream, kernel, one_block(kThreads - 1));
}

void different_warp_operations(Stream& stream) {
  void (*kernel)() = [] {
    if (threadIdx.x % 32 < 16) {
      __shfl_sync(0xffffffffu, 1, 0);
    } else {
      __syncwarp();
    }
  };
  launch("different_warp_operations", stream, kernel, one_block());
}

void lane_that_never_comes(Stream& stream) {
  void (*kernel)() = [] {
    if (threadIdx.x != 37) __ballot_sync(0xffffffffu, 1);
  };
  launch("lane_that_never_comes", stream, kernel, one_block());
}

void mask_without_own_lane(Stream& stream) {
  void (*kernel)() = [] { __ballot_sync(0xfffffffeu, 1); };
  launch("mask_without_own_lane", stream, kernel, one_block());
}

void barrier_of_too_few(Stream& stream) {
  void (*kernel)() = [] {
    if (threadIdx.x < 64) ptx::named_barrier(1, 96);
    __syncthreads();
  };
  launch("barrier_of_too_few", stream, kernel, one_block());
}

void read_before_previous(Stream& stream, int* values, int count) {
  void (*kernel)(int*, int) = [](int* out, int size) {
    const int i = static_cast<int>(threadIdx.x);
    const int value = i < size ? out[i] : 0;
    ptx::wait_for_previous();
    if (i < size) out[i] = value + 1;
  };
  LaunchConfig config = one_block();
  config.overlaps_previous = true;
  launch("read_before_previous", stream, kernel, config, values, count);
}

void never_waits_for_previous(Stream& stream) {
  void (*kernel)() = [] {
    if (threadIdx.x != 5) ptx::wait_for_previous();
  };
  LaunchConfig config = one_block();
  config.overlaps_previous = true;
  launch("never_waits_for_previous", stream, kernel, config);
}

void mbarrier_without_arrival(Stream& stream) {
  void (*kernel)() = [] {
    SPECDEC_SHARED_BYTES(shared);
    uint64_t* barrier = reinterpret_cast<uint64_t*>(shared);
    if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 2);
    __syncthreads();
    if (threadIdx.x == 0) ptx::mbarrier_arrive(barrier);
    ptx::mbarrier_wait(barrier, 0);
  };
  launch("mbarrier_without_arrival", stream, kernel, one_block(16));
}

void misaligned_kernel(float* data, AlignedAccess access) {
  SPECDEC_SHARED_BYTES(shared);
  uint64_t* barrier = reinterpret_cast<uint64_t*>(shared + 1024);
  unsigned char* odd = shared + 4;
  uint32_t registers[4];
  const bool is_first = threadIdx.x == 0;
  if (is_first) ptx::mbarrier_init(barrier, 1);
  __syncthreads();
  if (access == AlignedAccess::kLdmatrix) ptx::ldmatrix_x4(registers, odd);
  if (!is_first) return;
  switch (access) {
    case AlignedAccess::kLoad:
      data[0] = reinterpret_cast<float4*>(data + 1)->x;
      break;
    case AlignedAccess::kStore:
      *reinterpret_cast<int2*>(data + 1) = {1, 2};
      break;
    case AlignedAccess::kLoadStreaming:
      ptx::load_streaming(data + 1);
      break;
    case AlignedAccess::kCopyAsyncFrom:
      ptx::copy_async_16(shared, data + 1);
      break;
    case AlignedAccess::kCopyAsyncTo:
      ptx::copy_async_16(odd, data);
      break;
    case AlignedAccess::kBulkCopyFrom:
      ptx::bulk_copy(shared, data + 1, 16, barrier);
      break;
    case AlignedAccess::kBulkCopyTo:
      ptx::bulk_copy(odd, data, 16, barrier);
      break;
    case AlignedAccess::kMbarrier:
      ptx::mbarrier_init(reinterpret_cast<uint64_t*>(odd), 1);
      break;
    case AlignedAccess::kLdmatrix:
      break;
    case AlignedAccess::kWgmmaTile:
      ptx::wgmma_tile(shared + 128);
      break;
  }
}

void misaligned(Stream& stream, float* data, AlignedAccess access) {
  launch("misaligned", stream, misaligned_kernel, one_block(2048), data, access);
}

}  // namespace

FaultyKernels faulty_kernels() {
  return {.reverse_without_barrier = reverse_without_barrier,
          .write_past_end = write_past_end,
          .prefetch = prefetch,
          .write_past_shared = write_past_shared,
          .different_warp_operations = different_warp_operations,
          .lane_that_never_comes = lane_that_never_comes,
          .mask_without_own_lane = mask_without_own_lane,
          .barrier_of_too_few = barrier_of_too_few,
          .read_before_previous = read_before_previous,
          .never_waits_for_previous = never_waits_for_previous,
          .copy_async_without_wait = copy_async<false>,
          .copy_bulk_without_wait = copy_bulk<false>,
          .mbarrier_without_arrival = mbarrier_without_arrival,
          .misaligned = misaligned};
}
#endif

}  // namespace specdec::cuda::SPECDEC_TARGET
