// Launchers of ptx_conformance_kernels.cu: one instruction each, with operands and results in the
// layout of registers or shared memory.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

enum class ElementType { kBf16, kHalf };

struct ConformanceKernels {
  // d[32][4] += a[32][4] b[32][2]: each lane's registers.
  void (*mma)(Stream& stream, ElementType type, float* d, const uint32_t* a, const uint32_t* b);
  // out[32][4] = the registers; matrices[32][8] are the rows that lanes 0 to 31 point to.
  void (*ldmatrix)(Stream& stream, bool transposed, uint32_t* out, const uint16_t* matrices);
  // to[i] = from[i] for 16-byte pieces i, zeros for odd i; in two groups, each waited for.
  void (*copy_async)(Stream& stream, const uint32_t* from, uint32_t* to);  // [128 threads][2][4]
  void (*load_streaming)(Stream& stream, const uint32_t* from, uint32_t* to);  // [128][4]
  // Each half of a block of 256 reverses 128 values, behind its own barrier.
  void (*named_barrier)(Stream& stream, const int* from, int* to);
  // times[2], before and after a round of work
  void (*nanoseconds)(Stream& stream, uint64_t* times);
  // to = from, [num_tiles][256] floats through a ring of three tiles, whose halves come by
  // a bulk copy and by a warp's asynchronous copies.
  void (*bulk_ring)(Stream& stream, const float* from, float* to, int num_tiles);
  // d[128][n / 2]: each thread's registers after a b, plus a b for a second pair of tiles. a
  // [2][64][64] and b [2][n][64] are 16-bit elements in the layout of shared memory.
  void (*wgmma)(Stream& stream, ElementType type, int n, float* d, const uint16_t* a,
                const uint16_t* b);
  // The same with a in registers; a [2][64][64] is row-major. narrow: b is [4][n][32].
  void (*wgmma_registers)(Stream& stream, ElementType type, int n, bool narrow, float* d,
                          const uint16_t* a, const uint16_t* b);
  // floats[i] = to_float(i), bits[i] = from_float(values[i]); [65536] each
  void (*convert)(Stream& stream, ElementType type, float* floats, uint16_t* bits,
                  const float* values);
  // Warp operations of CUDA C++: out[kNumWarpResults][32] for value[32] of each lane.
  static constexpr int kNumWarpResults = 16;
  void (*warp_operations)(Stream& stream, const uint32_t* values, uint32_t* out);
  // out[4] of 96 threads: votes of a block, then atomics on cells[6].
  void (*block_operations)(Stream& stream, int* votes, uint32_t* cells, uint32_t* out);
  // out[kNumBitResults][count]
  static constexpr int kNumBitResults = 8;
  void (*bit_operations)(Stream& stream, const uint32_t* values, uint32_t* out, int count);
};

namespace native {
ConformanceKernels conformance_kernels();
}
namespace emulated {
ConformanceKernels conformance_kernels();
}

}  // namespace specdec::cuda
