#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"
#include "tests/cuda/emulation/ptx_conformance_kernels.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;

LaunchConfig threads(unsigned count, size_t shared_bytes = 0) {
  return {.grid = {1}, .block = {count}, .shared_bytes = shared_bytes};
}

template <class T>
__global__ void mma_kernel(float* d, const uint32_t* a, const uint32_t* b) {
  const unsigned lane = threadIdx.x;
  float sums[4];
  uint32_t left[4];
  uint32_t right[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = d[4 * lane + i];
    left[i] = a[4 * lane + i];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) right[i] = b[2 * lane + i];
  ptx::mma_m16n8k16<T>(sums, left, right);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[4 * lane + i] = sums[i];
}

void mma(Stream& stream, ElementType type, float* d, const uint32_t* a, const uint32_t* b) {
  if (type == ElementType::kBf16) {
    launch("mma", stream, mma_kernel<Bf16>, threads(32), d, a, b);
  } else {
    launch("mma", stream, mma_kernel<Half>, threads(32), d, a, b);
  }
}

template <bool kTransposed>
__global__ void ldmatrix_kernel(uint32_t* out, const uint16_t* matrices) {
  SPECDEC_SHARED_BYTES(shared);
  uint16_t* rows = reinterpret_cast<uint16_t*>(shared);
  const unsigned lane = threadIdx.x;
  const unsigned index = lane * 5 % 32;  // any order of the rows
  for (unsigned i = 0; i < 8; ++i) rows[8 * index + i] = matrices[8 * lane + i];
  __syncwarp();
  uint32_t registers[4];
  if constexpr (kTransposed) {
    ptx::ldmatrix_x4_transposed(registers, rows + 8 * index);
  } else {
    ptx::ldmatrix_x4(registers, rows + 8 * index);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = registers[i];
}

void ldmatrix(Stream& stream, bool transposed, uint32_t* out, const uint16_t* matrices) {
  launch("ldmatrix", stream, transposed ? ldmatrix_kernel<true> : ldmatrix_kernel<false>,
         threads(32, 512), out, matrices);
}

__global__ void copy_async_kernel(const uint32_t* from, uint32_t* to) {
  SPECDEC_SHARED_BYTES(shared);
  const unsigned thread = threadIdx.x;
  uint4* pieces = reinterpret_cast<uint4*>(shared) + 2 * thread;
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned piece = 2 * thread + i;
    ptx::copy_async_16(pieces + i, from + 4 * piece, piece % 3 != 1);
    ptx::copy_async_commit();
  }
  ptx::copy_async_wait<1>();
  const uint4 first = pieces[0];
  ptx::copy_async_wait<0>();
  const uint4 second = pieces[1];
  reinterpret_cast<uint4*>(to)[2 * thread] = first;
  reinterpret_cast<uint4*>(to)[2 * thread + 1] = second;
}

void copy_async(Stream& stream, const uint32_t* from, uint32_t* to) {
  launch("copy_async", stream, copy_async_kernel, threads(128, 128 * 32), from, to);
}

__global__ void load_streaming_kernel(const uint32_t* from, uint32_t* to) {
  reinterpret_cast<uint4*>(to)[threadIdx.x] = ptx::load_streaming(from + 4 * threadIdx.x);
}

void load_streaming(Stream& stream, const uint32_t* from, uint32_t* to) {
  launch("load_streaming", stream, load_streaming_kernel, threads(128), from, to);
}

__global__ void named_barrier_kernel(const int* from, int* to) {
  SPECDEC_SHARED_BYTES(shared);
  int* values = reinterpret_cast<int*>(shared);
  const int half = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  values[threadIdx.x] = from[threadIdx.x];
  // The second half makes more rounds, so the first must not wait for it.
  for (int round = 0; round <= half; ++round) ptx::named_barrier(1 + half, 128);
  to[threadIdx.x] = values[128 * half + 127 - thread];
}

void named_barrier(Stream& stream, const int* from, int* to) {
  launch("named_barrier", stream, named_barrier_kernel, threads(256, 1024), from, to);
}

__global__ void nanoseconds_kernel(uint64_t* times) {
  times[0] = ptx::nanoseconds();
  for (int i = 0; i < 100; ++i) __syncwarp();
  times[1] = ptx::nanoseconds();
}

void nanoseconds(Stream& stream, uint64_t* times) {
  launch("nanoseconds", stream, nanoseconds_kernel, threads(1), times);
}

constexpr int kRingTiles = 3;
constexpr int kTileFloats = 256;

__global__ void bulk_ring_kernel(const float* from, float* to, int num_tiles) {
#if defined(SPECDEC_EMULATED) || __CUDA_ARCH__ >= 900
  SPECDEC_SHARED_BYTES(shared);
  float* tiles = reinterpret_cast<float*>(shared);
  uint64_t* full = reinterpret_cast<uint64_t*>(tiles + kRingTiles * kTileFloats);
  uint64_t* empty = full + kRingTiles;
  constexpr int kConsumers = 128;  // and one warp that fills the ring
  constexpr int kTileBytes = kTileFloats * sizeof(float);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kRingTiles; ++i) {
      ptx::mbarrier_init(full + i, 1 + 32);
      ptx::mbarrier_init(empty + i, kConsumers);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (thread >= kConsumers) {
    const int lane = thread - kConsumers;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int slot = tile % kRingTiles;
      if (tile >= kRingTiles) ptx::mbarrier_wait(empty + slot, (tile / kRingTiles - 1) % 2);
      const float* source = from + tile * kTileFloats;
      float* target = tiles + slot * kTileFloats;
      if (lane == 0) {
        ptx::mbarrier_arrive_expect(full + slot, kTileBytes / 2);
        ptx::bulk_copy(target, source, kTileBytes / 2, full + slot);
      }
      const int own = kTileFloats / 2 + lane * 4;
      ptx::copy_async_16(target + own, source + own);
      ptx::copy_async_arrive(full + slot);
    }
    return;
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int slot = tile % kRingTiles;
    ptx::mbarrier_wait(full + slot, tile / kRingTiles % 2);
    for (int i = thread; i < kTileFloats; i += kConsumers) {
      to[tile * kTileFloats + i] = tiles[slot * kTileFloats + i];
    }
    ptx::mbarrier_arrive(empty + slot);
  }
#endif
}

void bulk_ring(Stream& stream, const float* from, float* to, int num_tiles) {
  constexpr size_t kSharedBytes = kRingTiles * (kTileFloats * sizeof(float) + 2 * sizeof(uint64_t));
  launch("bulk_ring", stream, bulk_ring_kernel, threads(160, kSharedBytes), from, to, num_tiles);
}

template <class T, int N>
__global__ void __launch_bounds__(128)
    wgmma_kernel(float* d, const uint16_t* a, const uint16_t* b) {
#if defined(SPECDEC_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SPECDEC_SHARED_BYTES(shared);
  uint16_t* left = reinterpret_cast<uint16_t*>(shared);  // [2][64][64]
  uint16_t* right = left + 2 * 64 * 64;                  // [2][N][64]
  for (int i = static_cast<int>(threadIdx.x); i < 2 * 64 * 64; i += 128) left[i] = a[i];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * N * 64; i += 128) right[i] = b[i];
  ptx::fence_async_proxy();
  __syncthreads();
  float sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = 1e30f;  // overwritten by the first
  ptx::wgmma_hold(sums);
  ptx::wgmma_fence();
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const uint64_t tile_a = ptx::wgmma_tile(left + pair * 64 * 64);
    const uint64_t tile_b = ptx::wgmma_tile(right + pair * N * 64);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_m64k16<T, N>(sums, ptx::wgmma_advance(tile_a, step),
                              ptx::wgmma_advance(tile_b, step), pair + step > 0);
    }
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(sums);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[threadIdx.x * (N / 2) + i] = sums[i];
#endif
}

template <class T, int N>
void wgmma_of(Stream& stream, float* d, const uint16_t* a, const uint16_t* b) {
  launch("wgmma", stream, wgmma_kernel<T, N>, threads(128, 2 * 128 * (64 + N)), d, a, b);
}

template <class T>
void wgmma_of(Stream& stream, int n, float* d, const uint16_t* a, const uint16_t* b) {
  switch (n) {
    case 8:
      return wgmma_of<T, 8>(stream, d, a, b);
    case 16:
      return wgmma_of<T, 16>(stream, d, a, b);
    case 32:
      return wgmma_of<T, 32>(stream, d, a, b);
    case 64:
      return wgmma_of<T, 64>(stream, d, a, b);
    case 128:
      return wgmma_of<T, 128>(stream, d, a, b);
    default:
      return wgmma_of<T, 256>(stream, d, a, b);
  }
}

void wgmma(Stream& stream, ElementType type, int n, float* d, const uint16_t* a,
           const uint16_t* b) {
  return type == ElementType::kBf16 ? wgmma_of<Bf16>(stream, n, d, a, b)
                                    : wgmma_of<Half>(stream, n, d, a, b);
}

template <class T, int N, bool kNarrow>
__global__ void __launch_bounds__(128)
    wgmma_registers_kernel(float* d, const uint16_t* a, const uint16_t* b) {
#if defined(SPECDEC_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SPECDEC_SHARED_BYTES(shared);
  uint16_t* right = reinterpret_cast<uint16_t*>(shared);  // [2][N][64]
  for (int i = static_cast<int>(threadIdx.x); i < 2 * N * 64; i += 128) right[i] = b[i];
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint32_t left[8][4];
#pragma unroll
  for (int step = 0; step < 8; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = (step / 4 * 64 + row + i % 2 * 8) * 64 + step % 4 * 16 + i / 2 * 8 + 2 * t;
      left[step][i] = a[index] | static_cast<uint32_t>(a[index + 1]) << 16;
    }
  }
  ptx::fence_async_proxy();
  __syncthreads();
  float sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = 1e30f;  // overwritten by the first
  ptx::wgmma_hold(sums);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    constexpr int kTileSteps = kNarrow ? 2 : 4;
    const uint16_t* tile = right + step / kTileSteps * kTileSteps * N * 16;
    ptx::wgmma_m64k16<T, N>(
        sums, left[step],
        ptx::wgmma_advance(kNarrow ? ptx::wgmma_narrow_tile(tile) : ptx::wgmma_tile(tile),
                           step % kTileSteps),
        step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(sums);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[threadIdx.x * (N / 2) + i] = sums[i];
#endif
}

template <class T, int N>
void wgmma_registers_of(Stream& stream, bool narrow, float* d, const uint16_t* a,
                        const uint16_t* b) {
  launch("wgmma_registers", stream,
         narrow ? wgmma_registers_kernel<T, N, true> : wgmma_registers_kernel<T, N, false>,
         threads(128, 2 * 128 * N), d, a, b);
}

template <class T>
void wgmma_registers_of(Stream& stream, int n, bool narrow, float* d, const uint16_t* a,
                        const uint16_t* b) {
  switch (n) {
    case 8:
      return wgmma_registers_of<T, 8>(stream, narrow, d, a, b);
    case 16:
      return wgmma_registers_of<T, 16>(stream, narrow, d, a, b);
    case 32:
      return wgmma_registers_of<T, 32>(stream, narrow, d, a, b);
    case 64:
      return wgmma_registers_of<T, 64>(stream, narrow, d, a, b);
    case 128:
      return wgmma_registers_of<T, 128>(stream, narrow, d, a, b);
    default:
      return wgmma_registers_of<T, 256>(stream, narrow, d, a, b);
  }
}

void wgmma_registers(Stream& stream, ElementType type, int n, bool narrow, float* d,
                     const uint16_t* a, const uint16_t* b) {
  return type == ElementType::kBf16 ? wgmma_registers_of<Bf16>(stream, n, narrow, d, a, b)
                                    : wgmma_registers_of<Half>(stream, n, narrow, d, a, b);
}

template <class T>
__global__ void convert_kernel(float* floats, uint16_t* bits, const float* values) {
  for (unsigned i = threadIdx.x; i < 65536; i += blockDim.x) {
    const T element{static_cast<uint16_t>(i)};
    floats[i] = to_float(element);
    bits[i] = from_float<T>(values[i]).bits;
    // Packed and single conversions must agree, or the result is spoilt.
    const uint32_t pair = pack<T>(values[i], values[i ^ 1]);
    const float2 both = unpack<T>(i | (i ^ 1) << 16);
    if (static_cast<uint16_t>(pair) != bits[i]) floats[i] = -1.0f;
    if (pair >> 16 != from_float<T>(values[i ^ 1]).bits) floats[i] = -2.0f;
    if (__float_as_uint(both.x) != __float_as_uint(to_float(element))) floats[i] = -3.0f;
    const T other{static_cast<uint16_t>(i ^ 1)};
    if (__float_as_uint(both.y) != __float_as_uint(to_float(other))) floats[i] = -4.0f;
  }
}

void convert(Stream& stream, ElementType type, float* floats, uint16_t* bits, const float* values) {
  if (type == ElementType::kBf16) {
    launch("convert", stream, convert_kernel<Bf16>, threads(256), floats, bits, values);
  } else {
    launch("convert", stream, convert_kernel<Half>, threads(256), floats, bits, values);
  }
}

__global__ void warp_operations_kernel(const uint32_t* values, uint32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t value = values[lane];
  int row = 0;
  const auto put = [&](uint32_t result) { out[32 * row++ + lane] = result; };
  put(__shfl_sync(kAllLanes, value, 5));
  put(__shfl_sync(kAllLanes, value, lane + 3, 8));
  put(__shfl_up_sync(kAllLanes, value, 2));
  put(__shfl_up_sync(kAllLanes, value, 3, 16));
  put(__shfl_down_sync(kAllLanes, value, 7));
  put(__shfl_down_sync(kAllLanes, value, 1, 4));
  put(__shfl_xor_sync(kAllLanes, value, 16));
  put(__shfl_xor_sync(kAllLanes, value, 5, 8));
  put(__ballot_sync(kAllLanes, value % 3 == 0));
  put(static_cast<uint32_t>(__any_sync(kAllLanes, value == values[31])));
  put(static_cast<uint32_t>(__all_sync(kAllLanes, value % 2 == 0)));
  const uint32_t half = lane < 16 ? 0xffffu : 0xffff0000u;
  put(__ballot_sync(half, value % 2));
  put(__reduce_add_sync(kAllLanes, value));
  put(__reduce_max_sync(half, value));
  put(__reduce_min_sync(half, value));
  put(static_cast<uint32_t>(__shfl_sync(kAllLanes, uint64_t{value} << 20, lane ^ 1) >> 20));
}

void warp_operations(Stream& stream, const uint32_t* values, uint32_t* out) {
  launch("warp_operations", stream, warp_operations_kernel, threads(32), values, out);
}

__global__ void block_operations_kernel(int* votes, uint32_t* cells, uint32_t* out) {
  const unsigned thread = threadIdx.x;
  const int count = __syncthreads_count(thread % 5 == 0);
  const int any = __syncthreads_or(thread == 95);
  const int all = __syncthreads_and(thread < 95);
  const int all_true = __syncthreads_and(thread < 96);
  votes[4 * thread] = count;
  votes[4 * thread + 1] = any != 0;
  votes[4 * thread + 2] = all != 0;
  votes[4 * thread + 3] = all_true != 0;
  atomicAdd(&cells[0], thread);
  atomicMax(&cells[1], thread * 7 % 96);
  atomicMin(&cells[2], thread * 7 % 96);
  atomicOr(&cells[3], 1u << (thread % 32));
  atomicInc(&cells[4], 40);
  atomicCAS(&cells[5], thread, thread + 1);  // some of the links of a chain
  atomicAdd(reinterpret_cast<float*>(&cells[6]), 0.5f);
  out[thread] = atomicExch(&cells[7], thread);
}

void block_operations(Stream& stream, int* votes, uint32_t* cells, uint32_t* out) {
  launch("block_operations", stream, block_operations_kernel, threads(96), votes, cells, out);
}

__global__ void bit_operations_kernel(const uint32_t* values, uint32_t* out, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 128) {
    const uint32_t value = values[i];
    const uint32_t other = values[(i + 1) % count];
    int row = 0;
    const auto put = [&](uint32_t result) { out[row++ * count + i] = result; };
    put(static_cast<uint32_t>(__popc(value)));
    put(static_cast<uint32_t>(__clz(static_cast<int>(value))));
    put(static_cast<uint32_t>(__ffs(static_cast<int>(value))));
    put(__brev(value));
    put(__byte_perm(value, other, 0x9c35u ^ (value & 0x7777u)));
    put(__funnelshift_l(value, other, value >> 27));
    put(__umulhi(value, other));
    put(static_cast<uint32_t>(__dp4a(static_cast<int>(value), static_cast<int>(other), -5)));
  }
}

void bit_operations(Stream& stream, const uint32_t* values, uint32_t* out, int count) {
  launch("bit_operations", stream, bit_operations_kernel, threads(128), values, out, count);
}

}  // namespace

ConformanceKernels conformance_kernels() {
  return {.mma = mma,
          .ldmatrix = ldmatrix,
          .copy_async = copy_async,
          .load_streaming = load_streaming,
          .named_barrier = named_barrier,
          .nanoseconds = nanoseconds,
          .bulk_ring = bulk_ring,
          .wgmma = wgmma,
          .wgmma_registers = wgmma_registers,
          .convert = convert,
          .warp_operations = warp_operations,
          .block_operations = block_operations,
          .bit_operations = bit_operations};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
