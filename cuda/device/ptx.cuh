// The instructions that CUDA C++ has no name for, one thin wrapper each; the only place with PTX.
// The emulation gives every wrapper a second body of the same meaning (emulation/ptx.h).
#pragma once

#include "cuda/device/target.cuh"

#ifdef SPECDEC_EMULATED
#include "cuda/emulation/ptx.h"
#else

#include <cstdint>

namespace specdec::cuda::native {

// Storage types of activations and weights; numeric.cuh converts them.
struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

namespace ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// d += a b for a 16x16 (row-major) and b 16x8 (column-major) tile, float32 sums. With lane = 4g +
// t:
//   a[0]: row g,     k 2t, 2t+1      a[1]: row g + 8, k 2t, 2t+1
//   a[2]: row g,     k 2t+8, 2t+9    a[3]: row g + 8, k 2t+8, 2t+9
//   b[0]: k 2t, 2t+1, column g       b[1]: k 2t+8, 2t+9, column g
//   d[0], d[1]: row g, columns 2t, 2t+1      d[2], d[3]: row g + 8, likewise
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<Bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                   const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<Half>(float (&d)[4], const uint32_t (&a)[4],
                                                   const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8x8 matrices of 16-bit elements from shared memory: lane 8i + r gives the address of row r
// (16 bytes) of matrix i; out[i] of lane 4g + t is elements 2t, 2t+1 of its row g.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same with each matrix transposed: out[i] is elements g of rows 2t, 2t+1.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

// Copies 16 bytes to shared memory, some time before a wait for their group returns; zeros when not
// valid (then `global` is not read). Both addresses are multiples of 16.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid = true) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
      "l"(global), "r"(source_bytes)
      : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 16 bytes that are read once and never written while the kernel runs: past L1, ahead in L2.
__device__ __forceinline__ uint4 load_streaming(const void* global) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

// Programmatic dependent launch (LaunchConfig::overlaps_previous). Before compute capability 9.0
// kernels do not overlap and both do nothing.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// A barrier among num_threads threads (a multiple of 32), by number: 0 is __syncthreads'.
__device__ __forceinline__ void named_barrier(int number, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(num_threads) : "memory");
}

// Loads and stores that order memory between blocks.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* global) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(uint32_t* global, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// mbarriers: a phase completes when the expected arrivals and bytes are there.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(num_arrivals)
               : "memory");
}
// Makes initialised barriers visible to bulk copies; then comes a __syncthreads.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and adds to the bytes the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int size_bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(size_bytes)
      : "memory");
}
// Waits for the end of the phase with this parity: 0 the first, 1 the second, 0 ...
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}
// Orders this thread's writes to shared memory before later reads by bulk copies and wgmma.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Copies size_bytes (a multiple of 16) to shared memory; completes them on the barrier.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int size_bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(size_bytes), "r"(shared_address(barrier))
      : "memory");
}

#endif

}  // namespace ptx
}  // namespace specdec::cuda::native

#endif  // SPECDEC_EMULATED
