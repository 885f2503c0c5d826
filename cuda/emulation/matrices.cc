#include "cuda/emulation/matrices.h"

#include <bit>
#include <cstring>

#include "core/dtype.h"
#include "cuda/emulation/fibres.h"

namespace specdec::cuda::emulation {
namespace {

template <bool kIsBf16>
float widen(uint32_t bits) {
  if constexpr (kIsBf16) return std::bit_cast<float>(bits << 16);
  return half_to_float(static_cast<uint16_t>(bits));
}

// d += a b, in order of k; products and sums are rounded one by one on every machine.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("avx2", "default")))
#endif
void multiply_tiles(float (&__restrict d)[16][8], const float (&__restrict a)[16][16],
                    const float (&__restrict b)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
}

template <bool kIsBf16>
void mma(void* const* operands) {
  float a[16][16];  // [row][k]
  float b[16][8];   // [k][column]
  float d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const MmaOperands*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int half = 0; half < 2; ++half) {  // of a register
      const int shift = 16 * half;
      const auto element = [&](uint32_t pair) { return widen<kIsBf16>(pair >> shift & 0xffff); };
      const int k = 2 * t + half;
      a[g][k] = element(mine.a[0]);
      a[g + 8][k] = element(mine.a[1]);
      a[g][k + 8] = element(mine.a[2]);
      a[g + 8][k + 8] = element(mine.a[3]);
      b[k][g] = element(mine.b[0]);
      b[k + 8][g] = element(mine.b[1]);
      d[g][k] = mine.d[half];
      d[g + 8][k] = mine.d[2 + half];
    }
  }
  multiply_tiles(d, a, b);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const MmaOperands*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      mine.d[half] = d[g][2 * t + half];
      mine.d[2 + half] = d[g + 8][2 * t + half];
    }
  }
}

const uint16_t* row_address(void* const* operands, int matrix, int row) {
  const void* address = static_cast<const LdmatrixOperands*>(operands[8 * matrix + row])->row;
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
    fault("calls ldmatrix with an address that is no multiple of 16");
  }
  return static_cast<const uint16_t*>(address);
}

}  // namespace

void require_whole_warp(uint32_t mask) {
  if (mask != 0xffffffffu) fault("calls a matrix instruction in a warp of fewer than 32 threads");
}

void mma_bf16(void* const* operands, uint32_t mask) {
  require_whole_warp(mask);
  mma<true>(operands);
}
void mma_half(void* const* operands, uint32_t mask) {
  require_whole_warp(mask);
  mma<false>(operands);
}

void ldmatrix(void* const* operands, uint32_t mask) {
  require_whole_warp(mask);
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      const uint16_t* elements = row_address(operands, matrix, row);
      for (int t = 0; t < 4; ++t) {
        auto* out = static_cast<const LdmatrixOperands*>(operands[4 * row + t])->out;
        std::memcpy(&out[matrix], elements + 2 * t, sizeof(uint32_t));
      }
    }
  }
}

void ldmatrix_transposed(void* const* operands, uint32_t mask) {
  require_whole_warp(mask);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint16_t* rows[8];
    for (int row = 0; row < 8; ++row) rows[row] = row_address(operands, matrix, row);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4;
      const int t = lane % 4;
      auto* out = static_cast<const LdmatrixOperands*>(operands[lane])->out;
      out[matrix] = rows[2 * t][g] | static_cast<uint32_t>(rows[2 * t + 1][g]) << 16;
    }
  }
}

}  // namespace specdec::cuda::emulation
