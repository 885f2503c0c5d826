// One thin wrapper for each instruction that CUDA C++ has no name for; no other file has PTX. The
// emulation has a second body of the same meaning for every wrapper (emulation/ptx.h).
// tests/cuda/emulation/ptx_conformance_test.cc and ptx_operations_test.cc compare both with plain
// loops written from the PTX and CUDA documentation.
#pragma once

#include "cuda/common/target.cuh"

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

// d += a b for a 16x16 (row-major) and b 16x8 (column-major) tile, float32 sums. In lane 4g + t:
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

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane 8i + r gives the address of
// row r (16 bytes) of matrix i; out[i] of lane 4g + t is elements 2t, 2t+1 of row g of matrix i.
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

// Begins a copy of 16 bytes to shared memory, which is complete when a wait for its group returns.
// Writes zeros if not valid, and then does not read `global`. Both addresses are multiples of 16.
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
// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads 16 bytes that are read once and never written while the kernel runs: not kept in L1, 256
// bytes prefetched into L2. Not ld.global.nc, which the assembler moves behind wait_for_previous.
__device__ __forceinline__ uint4 load_streaming(const void* global) {
  uint4 value;
  asm volatile("ld.weak.global.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

// Prefetches 16-byte aligned memory into L2. Does nothing before compute capability 9.0.
__device__ __forceinline__ void prefetch_to_l2(const void* global, uint32_t size_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(size_bytes));
#endif
}

// Programmatic dependent launch (LaunchConfig::overlaps_previous). Before compute capability 9.0
// kernels do not overlap and both functions do nothing.
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

// Barrier `number` among num_threads threads (a multiple of 32). __syncthreads uses number 0.
__device__ __forceinline__ void named_barrier(int number, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(num_threads) : "memory");
}

// Adds atomically and returns the old value. One thread of a block calls it between two barriers of
// the block: the block then sees what blocks that added before it had written, and blocks that add
// later see what this one has.
__device__ __forceinline__ uint32_t add_acquire_release(uint32_t* global, uint32_t count) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(global), "r"(count)
               : "memory");
  return before;
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

// The same for memory that other GPUs and the host reach.
__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_system(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// For every iteration of a loop that waits for other blocks, usually for microseconds. `turns`, in
// shared memory, counts the iterations. Each takes a round trip to L2, so kMostTurns take some
// seconds; the kernel then ends with an error instead of hanging the device.
__device__ __forceinline__ void bound_wait(volatile uint32_t* turns) {
  constexpr uint32_t kMostTurns = 1u << 22;
  const uint32_t turn = *turns + 1;
  *turns = turn;
  if (turn == kMostTurns) __trap();
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// mbarriers: a phase completes when the expected arrivals and bytes have come.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(num_arrivals)
               : "memory");
}
// Makes initialised barriers visible to bulk copies. A __syncthreads has to follow.
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
// Waits for the end of the phase with this parity; phases have parities 0, 1, 0, ...
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
// Arrives when the copies that this thread has begun by copy_async_16 are complete. Such copies
// belong to no group.
__device__ __forceinline__ void copy_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Begins a copy of size_bytes (a multiple of 16) to shared memory; the barrier counts the bytes.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int size_bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(size_bytes), "r"(shared_address(barrier))
      : "memory");
}

#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// wgmma: d += a b by the four warps of a warpgroup, for a 64x16 tile a and a 16xN tile b, both in
// shared memory, float32 sums. It runs asynchronously: from the call until a wait for its group
// returns, neither d nor the tiles may be touched (wgmma_hold keeps the compiler from touching d).
//
// Tiles are rows of 64 16-bit elements along k (128 bytes): row r of a is output row r, row n of b
// is output column n. Groups of 8 rows begin at multiples of 1024 bytes of shared memory, and the
// 16-byte piece c of row r lies at piece c ^ (r % 8). Lane 4g + t of warp w (of four) has:
//   d[4j], d[4j + 1]: row 16w + g, columns 8j + 2t, 8j + 2t + 1    d[4j + 2], d[4j + 3]: row + 8
__device__ __forceinline__ uint64_t wgmma_tile(const void* tile) {
  constexpr uint64_t kGroupBytes = 1024;  // from 8 rows to the next
  constexpr uint64_t kSwizzle128 = 1;
  return (shared_address(tile) & 0x3ffffu) >> 4 | uint64_t{1} << 16 | kGroupBytes >> 4 << 32 |
         kSwizzle128 << 62;
}
// A tile b whose rows are 32 elements (64 bytes): groups of 8 rows begin at multiples of 512 bytes,
// and piece c of row r lies at piece c ^ (r / 2 % 4).
__device__ __forceinline__ uint64_t wgmma_narrow_tile(const void* tile) {
  constexpr uint64_t kGroupBytes = 512;
  constexpr uint64_t kSwizzle64 = 2;
  return (shared_address(tile) & 0x3ffffu) >> 4 | uint64_t{1} << 16 | kGroupBytes >> 4 << 32 |
         kSwizzle64 << 62;
}
// The tile's elements from k = 16 n on, n being the second argument (0 to 3, or 1 if narrow).
__device__ __forceinline__ uint64_t wgmma_advance(uint64_t tile, int count) {
  return tile + static_cast<uint64_t>(2 * count);
}

// Goes before the first wgmma, and after other instructions have written d or tiles.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <class T, int N>
struct WgmmaInstruction;

// Lists of N / 2 registers for the instruction's text and its operands.
#define SPECDEC_WGMMA_TEXT_8 "%0,%1,%2,%3"
#define SPECDEC_WGMMA_TEXT_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define SPECDEC_WGMMA_TEXT_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define SPECDEC_WGMMA_TEXT_64                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SPECDEC_WGMMA_TEXT_128                                       \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"           \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SPECDEC_WGMMA_TEXT_256                                                   \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                       \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"             \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"             \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"             \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"             \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"             \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SPECDEC_WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SPECDEC_WGMMA_D8(i) SPECDEC_WGMMA_D4(i), SPECDEC_WGMMA_D4(i + 4)
#define SPECDEC_WGMMA_D16(i) SPECDEC_WGMMA_D8(i), SPECDEC_WGMMA_D8(i + 8)
#define SPECDEC_WGMMA_D32(i) SPECDEC_WGMMA_D16(i), SPECDEC_WGMMA_D16(i + 16)
#define SPECDEC_WGMMA_D64(i) SPECDEC_WGMMA_D32(i), SPECDEC_WGMMA_D32(i + 32)
#define SPECDEC_WGMMA_D128(i) SPECDEC_WGMMA_D64(i), SPECDEC_WGMMA_D64(i + 64)
#define SPECDEC_WGMMA(T, type, N, D, A, B, ACCUMULATE)                                    \
  template <>                                                                             \
  struct WgmmaInstruction<T, N> {                                                         \
    static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b, \
                                               int accumulate) {                          \
      asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ACCUMULATE                     \
                   ", 0;\n"                                                               \
                   " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type       \
                   " {" SPECDEC_WGMMA_TEXT_##N "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}"   \
                   : SPECDEC_WGMMA_D##D(0)                                                \
                   : "l"(a), "l"(b), "r"(accumulate)                                      \
                   : "memory");                                                           \
    }                                                                                     \
  };
SPECDEC_WGMMA(Bf16, "bf16", 8, 4, 4, 5, 6)
SPECDEC_WGMMA(Bf16, "bf16", 16, 8, 8, 9, 10)
SPECDEC_WGMMA(Bf16, "bf16", 32, 16, 16, 17, 18)
SPECDEC_WGMMA(Bf16, "bf16", 64, 32, 32, 33, 34)
SPECDEC_WGMMA(Bf16, "bf16", 128, 64, 64, 65, 66)
SPECDEC_WGMMA(Bf16, "bf16", 256, 128, 128, 129, 130)
SPECDEC_WGMMA(Half, "f16", 8, 4, 4, 5, 6)
SPECDEC_WGMMA(Half, "f16", 16, 8, 8, 9, 10)
SPECDEC_WGMMA(Half, "f16", 32, 16, 16, 17, 18)
SPECDEC_WGMMA(Half, "f16", 64, 32, 32, 33, 34)
SPECDEC_WGMMA(Half, "f16", 128, 64, 64, 65, 66)
SPECDEC_WGMMA(Half, "f16", 256, 128, 128, 129, 130)
#undef SPECDEC_WGMMA

template <class T, int N>
struct WgmmaFromRegisters;

#define SPECDEC_WGMMA(T, type, N, D, A0, A1, A2, A3, B, ACCUMULATE)                             \
  template <>                                                                                   \
  struct WgmmaFromRegisters<T, N> {                                                             \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t (&a)[4],       \
                                               uint64_t b, int accumulate) {                    \
      asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ACCUMULATE                           \
                   ", 0;\n"                                                                     \
                   " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type             \
                   " {" SPECDEC_WGMMA_TEXT_##N "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B \
                                               ", p, 1, 1, 0;\n}"                               \
                   : SPECDEC_WGMMA_D##D(0)                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)        \
                   : "memory");                                                                 \
    }                                                                                           \
  };
SPECDEC_WGMMA(Bf16, "bf16", 8, 4, 4, 5, 6, 7, 8, 9)
SPECDEC_WGMMA(Bf16, "bf16", 16, 8, 8, 9, 10, 11, 12, 13)
SPECDEC_WGMMA(Bf16, "bf16", 32, 16, 16, 17, 18, 19, 20, 21)
SPECDEC_WGMMA(Bf16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37)
SPECDEC_WGMMA(Bf16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69)
SPECDEC_WGMMA(Bf16, "bf16", 256, 128, 128, 129, 130, 131, 132, 133)
SPECDEC_WGMMA(Half, "f16", 8, 4, 4, 5, 6, 7, 8, 9)
SPECDEC_WGMMA(Half, "f16", 16, 8, 8, 9, 10, 11, 12, 13)
SPECDEC_WGMMA(Half, "f16", 32, 16, 16, 17, 18, 19, 20, 21)
SPECDEC_WGMMA(Half, "f16", 64, 32, 32, 33, 34, 35, 36, 37)
SPECDEC_WGMMA(Half, "f16", 128, 64, 64, 65, 66, 67, 68, 69)
SPECDEC_WGMMA(Half, "f16", 256, 128, 128, 129, 130, 131, 132, 133)
#undef SPECDEC_WGMMA
#undef SPECDEC_WGMMA_D4
#undef SPECDEC_WGMMA_D8
#undef SPECDEC_WGMMA_D16
#undef SPECDEC_WGMMA_D32
#undef SPECDEC_WGMMA_D64
#undef SPECDEC_WGMMA_D128
#undef SPECDEC_WGMMA_TEXT_8
#undef SPECDEC_WGMMA_TEXT_16
#undef SPECDEC_WGMMA_TEXT_32
#undef SPECDEC_WGMMA_TEXT_64
#undef SPECDEC_WGMMA_TEXT_128
#undef SPECDEC_WGMMA_TEXT_256

// N: 8, 16, 32, 64, 128 or 256. Without `accumulate` d is overwritten.
template <class T, int N>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b,
                                             bool accumulate = true) {
  WgmmaInstruction<T, N>::run(d, a, b, accumulate ? 1 : 0);
}
// The same with `a` in registers, each warp's 16 rows as for mma_m16n8k16. These registers, too,
// may not be touched until the wgmma is done.
template <class T, int N>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,
                                             bool accumulate = true) {
  WgmmaFromRegisters<T, N>::run(d, a, b, accumulate ? 1 : 0);
}

// Sets the registers per thread of this warpgroup, a multiple of 8 from 24 to 256: gives some back
// to the block, or takes more.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

}  // namespace ptx
}  // namespace specdec::cuda::native

#endif  // SPECDEC_EMULATED
