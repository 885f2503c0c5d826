// Matrix instructions of a warp: each runs once, on the operands of all 32 lanes.
#pragma once

#include <cstdint>

namespace specdec::cuda::emulation {

// The mask of instructions that take whole warps.
void require_whole_warp(uint32_t mask);

// One lane's registers; ptx.cuh says which elements they hold.
struct MmaOperands {
  float* d;           // [4]
  const uint32_t* a;  // [4]
  const uint32_t* b;  // [2]
};
void mma_bf16(void* const* operands, uint32_t mask);
void mma_half(void* const* operands, uint32_t mask);

struct LdmatrixOperands {
  uint32_t* out;  // [4]
  const void* row;
};
void ldmatrix(void* const* operands, uint32_t mask);
void ldmatrix_transposed(void* const* operands, uint32_t mask);

// One lane's part of a wgmma, which runs only when a wait asks for it. Until then d is poison;
// tiles, and registers that hold a, are read when it runs.
struct Wgmma {
  float* d;                               // [num_columns / 2]
  uint64_t a = 0;                         // a tile, or
  const uint32_t* a_registers = nullptr;  // [4]
  uint64_t b;
  int num_columns;
  bool is_bf16;
  bool accumulate;
};
void wgmma(const Wgmma& instruction);
void wgmma_commit();
void wgmma_wait(int num_pending_groups);

}  // namespace specdec::cuda::emulation
