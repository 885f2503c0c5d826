// A warp's matrix instructions: each runs once, on the operands of all 32 lanes.
#pragma once

#include <cstdint>

namespace specdec::cuda::emulation {

// Faults unless the mask has all 32 lanes.
void require_whole_warp(uint32_t mask);

inline constexpr int kMmaInputs = 16;  // summed by one instruction
inline constexpr int kMmaColumns = 8;

// The b matrix of an instruction, and its arithmetic: that of Hopper's tensor cores, for mma.sync
// and wgmma alike, as MMA-Sim found it (github.com/microsoft/MMA-Sim). The 16 products and d are
// one sum, in no order. Each term is truncated, towards zero, kFractionBits below the greatest
// exponent among them (a product's exponent is the sum of its factors'); the sum is truncated to
// float32.
class MmaInputs {
 public:
  explicit MmaInputs(bool is_bf16) : least_exponent_(is_bf16 ? -126 : -14) {}

  void set(int k, int column, float value);
  // d += a b, for one row.
  void add_products(const float (&a)[kMmaInputs], float (&d)[kMmaColumns]) const;

 private:
  static constexpr int kFractionBits = 25;
  using Columns = double __attribute__((vector_size(kMmaColumns * sizeof(double))));
  using Integers = int32_t __attribute__((vector_size(kMmaColumns * sizeof(int32_t))));

  int least_exponent_;  // of the element type's normal numbers
  Columns values_[kMmaInputs];
  int exponents_[kMmaInputs][kMmaColumns];
};

// One lane's registers; ptx.cuh says which elements these hold.
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

// One lane's part of a wgmma, which runs when a wait asks for it. Until then d is poison; tiles,
// and registers that hold a, are read at that time.
struct Wgmma {
  float* d;                               // [num_columns / 2]
  uint64_t a = 0;                         // a tile's descriptor, or
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
