#include "cuda/emulation/matrices.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

// 2^exponent, a normal double.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

constexpr int kLeastExponent = -126;  // of float32's normal numbers

// Zero has an exponent that is never the greatest.
int exponent_of(float value, int least) {
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(value) >> 23 & 255) - 127;
  return value == 0.0f ? -1000 : std::max(exponent, least);
}

// Rounds towards zero.
float truncated(double value) {
  const auto nearest = static_cast<float>(value);
  const bool is_past = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - (is_past ? 1u : 0u));
}

template <bool kIsBf16>
void mma(void* const* operands) {
  float a[16][kMmaInputs];  // [row][k]
  MmaInputs b(kIsBf16);
  float d[16][kMmaColumns];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const MmaOperands*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int half = 0; half < 2; ++half) {  // halves of a register
      const int shift = 16 * half;
      const auto element = [&](uint32_t pair) { return widen<kIsBf16>(pair >> shift & 0xffff); };
      const int k = 2 * t + half;
      a[g][k] = element(mine.a[0]);
      a[g + 8][k] = element(mine.a[1]);
      a[g][k + 8] = element(mine.a[2]);
      a[g + 8][k + 8] = element(mine.a[3]);
      b.set(k, g, element(mine.b[0]));
      b.set(k + 8, g, element(mine.b[1]));
      d[g][k] = mine.d[half];
      d[g + 8][k] = mine.d[2 + half];
    }
  }
  for (int row = 0; row < 16; ++row) b.add_products(a[row], d[row]);
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

void MmaInputs::set(int k, int column, float value) {
  values_[k][column] = value;
  exponents_[k][column] = exponent_of(value, least_exponent_);
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("avx2", "default")))
#endif
void MmaInputs::add_products(const float (&a)[kMmaInputs], float (&d)[kMmaColumns]) const {
  int a_exponents[kMmaInputs];
  for (int k = 0; k < kMmaInputs; ++k) a_exponents[k] = exponent_of(a[k], least_exponent_);
  int greatest[kMmaColumns];
  for (int column = 0; column < kMmaColumns; ++column) {
    greatest[column] = std::max(exponent_of(d[column], kLeastExponent), kLeastExponent);
    for (int k = 0; k < kMmaInputs; ++k) {
      greatest[column] = std::max(greatest[column], a_exponents[k] + exponents_[k][column]);
    }
  }
  // Infinities and NaN: nothing is truncated in their columns.
  const auto is_special = [&](int column) { return greatest[column] > 127; };
  float specials[kMmaColumns];
  for (int column = 0; column < kMmaColumns; ++column) {
    if (!is_special(column)) continue;
    double sum = d[column];
    for (int k = 0; k < kMmaInputs; ++k) sum += a[k] * values_[k][column];
    specials[column] = static_cast<float>(sum);
  }
  Columns scales;
  Columns sums;
  for (int column = 0; column < kMmaColumns; ++column) {
    scales[column] = is_special(column) ? 0.0 : power_of_two(kFractionBits - greatest[column]);
    sums[column] = is_special(column) ? 0 : static_cast<int32_t>(d[column] * scales[column]);
  }
  for (int k = 0; k < kMmaInputs; ++k) {
    const Columns products = static_cast<double>(a[k]) * values_[k] * scales;
    sums += __builtin_convertvector(__builtin_convertvector(products, Integers), Columns);
  }
  for (int column = 0; column < kMmaColumns; ++column) {
    d[column] = is_special(column)
                    ? specials[column]
                    : truncated(sums[column] * power_of_two(greatest[column] - kFractionBits));
  }
}

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
