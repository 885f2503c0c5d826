// CUDA C++ for the host compiler: the keywords and functions that kernels use.
//
// Everything but the keywords is in namespace specdec::cuda::emulated, as the kernels are. A static
// __shared__ array exists once for all blocks. So cooperative kernels must not have one, and two
// kernels that overlap must not keep data in the same one while they wait for earlier work. It
// keeps its contents from block to block; only the dynamic array is poisoned.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "cuda/emulation/fibres.h"

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)
#define __shared__ static thread_local
#define SPECDEC_SHARED_BYTES(name) \
  unsigned char* const name = ::specdec::cuda::emulation::this_thread->shared_bytes

#define threadIdx (::specdec::cuda::emulation::this_thread->thread_index)
#define blockIdx (::specdec::cuda::emulation::this_thread->block_index)
#define blockDim (::specdec::cuda::emulation::this_thread->block_dim)
#define gridDim (::specdec::cuda::emulation::this_thread->grid_dim)

namespace specdec::cuda::emulated {

using dim3 = Dim3;

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- Barriers and votes of a block.

inline void __syncthreads() { emulation::meet_block(0, 0, false, "__syncthreads"); }
inline int __syncthreads_count(int predicate) {
  return emulation::meet_block(0, 0, predicate != 0, "__syncthreads_count").num_true;
}
inline int __syncthreads_or(int predicate) {
  return emulation::meet_block(0, 0, predicate != 0, "__syncthreads_or").num_true != 0;
}
inline int __syncthreads_and(int predicate) {
  const emulation::Votes votes = emulation::meet_block(0, 0, predicate != 0, "__syncthreads_and");
  return votes.num_true == votes.num_threads;
}

// ---- Operations of a warp.

namespace detail {

inline void nothing(void* const*, uint32_t) {}

template <class T>
struct Exchange {
  T value;
  int source;  // lane
};

template <class T>
void exchange(void* const* operands, uint32_t mask) {
  T values[32];
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) values[lane] = static_cast<Exchange<T>*>(operands[lane])->value;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto* mine = static_cast<Exchange<T>*>(operands[lane]);
    if ((mask >> mine->source & 1) == 0) {
      emulation::fault("shuffles from a lane that takes no part");
    }
    mine->value = values[mine->source];
  }
}

template <class T>
T shuffle(uint32_t mask, T value, int source, const char* operation) {
  Exchange<T> mine{value, source};
  emulation::meet_warp(mask, operation, exchange<T>, &mine);
  return mine.value;
}

struct Ballot {
  bool predicate;
  uint32_t votes;
};

inline void ballot(void* const* operands, uint32_t mask) {
  uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && static_cast<Ballot*>(operands[lane])->predicate) {
      votes |= 1u << lane;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) static_cast<Ballot*>(operands[lane])->votes = votes;
  }
}

template <class T>
struct Reduction {
  T value;
  T (*join)(T, T);
};

template <class T>
void reduce(void* const* operands, uint32_t mask) {
  const int first = std::countr_zero(mask);
  const auto* begin = static_cast<Reduction<T>*>(operands[first]);
  T result = begin->value;
  for (int lane = first + 1; lane < 32; ++lane) {
    if (mask >> lane & 1) {
      result = begin->join(result, static_cast<Reduction<T>*>(operands[lane])->value);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) static_cast<Reduction<T>*>(operands[lane])->value = result;
  }
}

template <class T>
T reduce_lanes(uint32_t mask, T value, T (*join)(T, T), const char* operation) {
  Reduction<T> mine{value, join};
  emulation::meet_warp(mask, operation, reduce<T>, &mine);
  return mine.value;
}

}  // namespace detail

inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  emulation::meet_warp(mask, "__syncwarp", detail::nothing, nullptr);
}

// Shuffles within groups of `width` lanes (a power of two), as CUDA defines them.
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int lane = emulation::this_thread->lane;
  return detail::shuffle(mask, value, (lane & -width) + (source & (width - 1)), "__shfl_sync");
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = emulation::this_thread->lane;
  const int source = lane - static_cast<int>(delta);
  return detail::shuffle(mask, value, source < (lane & -width) ? lane : source, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
  const int lane = emulation::this_thread->lane;
  const int source = lane + static_cast<int>(delta);
  const int end = (lane & -width) + width;
  return detail::shuffle(mask, value, source >= end ? lane : source, "__shfl_down_sync");
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32) {
  const int lane = emulation::this_thread->lane;
  const int source = lane ^ lane_mask;
  const int end = (lane & -width) + width;
  return detail::shuffle(mask, value, source >= end ? lane : source, "__shfl_xor_sync");
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  detail::Ballot mine{predicate != 0, 0};
  emulation::meet_warp(mask, "__ballot_sync", detail::ballot, &mine);
  return mine.votes;
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}

template <class T>
T __reduce_add_sync(uint32_t mask, T value) {
  return detail::reduce_lanes<T>(
      mask, value, [](T a, T b) { return static_cast<T>(a + b); }, "__reduce_add_sync");
}
template <class T>
T __reduce_max_sync(uint32_t mask, T value) {
  return detail::reduce_lanes<T>(
      mask, value, [](T a, T b) { return std::max(a, b); }, "__reduce_max_sync");
}
template <class T>
T __reduce_min_sync(uint32_t mask, T value) {
  return detail::reduce_lanes<T>(
      mask, value, [](T a, T b) { return std::min(a, b); }, "__reduce_min_sync");
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value) {
  return detail::reduce_lanes<uint32_t>(
      mask, value, [](uint32_t a, uint32_t b) { return a | b; }, "__reduce_or_sync");
}

// ---- Memory. A device's threads all run on one host thread, so plain operations are atomic.

template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = value;
  return old;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old | value;
  return old;
}
// Counts up to `last`, then from 0 again.
inline unsigned atomicInc(unsigned* address, unsigned last) {
  const unsigned old = *address;
  *address = old >= last ? 0 : old + 1;
  return old;
}

inline void __threadfence() {}

// ---- Bits.

inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __popcll(uint64_t bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<uint32_t>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(bits)) + 1;
}
inline int __ffsll(int64_t bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<uint64_t>(bits)) + 1;
}
inline uint32_t __brev(uint32_t bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1) << (31 - i);
  return reversed;
}
// Selects bytes of y:x (x the low four) by the lower three bits of the four low nibbles of
// `selector`. The instruction repeats a byte's sign where bit 3 is set; CUDA's function clears it.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t index = selector >> (4 * i) & 7;
    result |= (static_cast<uint32_t>(bytes >> (8 * index)) & 0xff) << (8 * i);
  }
  return result;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  }
  return c;
}

// ---- Numbers.

using std::max;
using std::min;
inline unsigned min(unsigned a, int b) { return std::min(a, static_cast<unsigned>(b)); }
inline unsigned min(int a, unsigned b) { return std::min(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return std::max(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return std::max(static_cast<unsigned>(a), b); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
// NaN becomes 0; values out of range become the nearest integer.
inline int __float2int_rn(float value) {
  if (std::isnan(value)) return 0;
  if (value >= 2147483648.0f) return INT32_MAX;
  if (value <= -2147483648.0f) return INT32_MIN;
  return static_cast<int>(std::nearbyint(value));
}

}  // namespace specdec::cuda::emulated
