// The emulation's bodies of the wrappers in common/ptx.cuh, written from the PTX documentation.
// tests/cuda/emulation/ptx_conformance_test.cc and ptx_operations_test.cc compare both bodies with
// plain loops.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "cuda/emulation/cuda_language.h"
#include "cuda/emulation/matrices.h"

namespace specdec::cuda::emulated {

struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

namespace ptx {

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::MmaOperands mine{.d = d, .a = a, .b = b};
  emulation::meet_warp(0xffffffffu, "mma_m16n8k16",
                       std::is_same_v<T, Bf16> ? emulation::mma_bf16 : emulation::mma_half, &mine);
}

inline void ldmatrix_x4(uint32_t (&out)[4], const void* row) {
  emulation::LdmatrixOperands mine{.out = out, .row = row};
  emulation::meet_warp(0xffffffffu, "ldmatrix_x4", emulation::ldmatrix, &mine);
}
inline void ldmatrix_x4_transposed(uint32_t (&out)[4], const void* row) {
  emulation::LdmatrixOperands mine{.out = out, .row = row};
  emulation::meet_warp(0xffffffffu, "ldmatrix_x4_transposed", emulation::ldmatrix_transposed,
                       &mine);
}

inline void copy_async_16(void* shared, const void* global, bool valid = true) {
  emulation::copy_async_16(shared, global, valid);
}
inline void copy_async_commit() { emulation::copy_async_commit(); }
template <int kPending>
void copy_async_wait() {
  emulation::copy_async_wait(kPending);
}

inline uint4 load_streaming(const void* global) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    emulation::fault("calls load_streaming with an address that is no multiple of 16");
  }
  uint4 value;
  std::memcpy(&value, global, sizeof(value));
  return value;
}

inline void prefetch_to_l2(const void* global, uint32_t size_bytes) {
  emulation::check_prefetch(global, size_bytes);
}
inline void wait_for_previous() { emulation::wait_for_previous(); }
inline void let_next_start() { emulation::let_next_start(); }

inline void named_barrier(int number, int num_threads) {
  emulation::meet_block(number, num_threads, false, "named_barrier");
}

inline uint32_t add_acquire_release(uint32_t* global, uint32_t count) {
  const uint32_t before = *global;
  *global = before + count;
  return before;
}
inline uint32_t load_acquire(const uint32_t* global) {
  emulation::yield();
  return *static_cast<const volatile uint32_t*>(global);
}
inline void store_release(uint32_t* global, uint32_t value) {
  *static_cast<volatile uint32_t*>(global) = value;
}

// Other ranks' threads may write to the address, too.
inline uint32_t load_acquire_system(const uint32_t* address) {
  emulation::yield();
  return std::atomic_ref(*const_cast<uint32_t*>(address)).load(std::memory_order_acquire);
}
inline void store_release_system(uint32_t* address, uint32_t value) {
  std::atomic_ref(*address).store(value, std::memory_order_release);
}

inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Unbounded: the emulation itself finds blocks that wait for ever.
inline void bound_wait(volatile uint32_t*) {}

inline void mbarrier_init(uint64_t* barrier, int num_arrivals) {
  emulation::mbarrier_init(barrier, num_arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint64_t* barrier) { emulation::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(uint64_t* barrier, int size_bytes) {
  emulation::mbarrier_arrive(barrier, size_bytes);
}
inline void mbarrier_wait(uint64_t* barrier, int parity) {
  emulation::mbarrier_wait(barrier, parity);
}
inline void fence_async_proxy() {}
inline void copy_async_arrive(uint64_t* barrier) { emulation::copy_async_arrive(barrier); }
inline void bulk_copy(void* shared, const void* global, int size_bytes, uint64_t* barrier) {
  emulation::bulk_copy(shared, global, size_bytes, barrier);
}

// The same bits as on a GPU, for an address that counts from the block's shared memory.
inline uint64_t wgmma_tile(const void* tile) {
  const auto address = static_cast<uint64_t>(static_cast<const unsigned char*>(tile) -
                                             emulation::this_thread->shared_bytes);
  if (address % 1024 != 0) {
    emulation::fault("calls wgmma_tile with an address that is no multiple of 1024");
  }
  return address >> 4 | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}
inline uint64_t wgmma_narrow_tile(const void* tile) {
  const auto address = static_cast<uint64_t>(static_cast<const unsigned char*>(tile) -
                                             emulation::this_thread->shared_bytes);
  if (address % 512 != 0) {
    emulation::fault("calls wgmma_narrow_tile with an address that is no multiple of 512");
  }
  return address >> 4 | uint64_t{1} << 16 | uint64_t{32} << 32 | uint64_t{2} << 62;
}
inline uint64_t wgmma_advance(uint64_t tile, int count) {
  return tile + static_cast<uint64_t>(2 * count);
}
inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::wgmma_commit(); }
template <int kPending>
void wgmma_wait() {
  emulation::wgmma_wait(kPending);
}
template <int kCount>
void wgmma_hold(float (&)[kCount]) {}
template <class T, int N>
void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate = true) {
  static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128 || N == 256);
  emulation::wgmma({.d = d,
                    .a = a,
                    .b = b,
                    .num_columns = N,
                    .is_bf16 = std::is_same_v<T, Bf16>,
                    .accumulate = accumulate});
}
template <class T, int N>
void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
  static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128 || N == 256);
  emulation::wgmma({.d = d,
                    .a_registers = a,
                    .b = b,
                    .num_columns = N,
                    .is_bf16 = std::is_same_v<T, Bf16>,
                    .accumulate = accumulate});
}
template <int kRegisters>
void shrink_registers() {}
template <int kRegisters>
void grow_registers() {}

}  // namespace ptx
}  // namespace specdec::cuda::emulated
