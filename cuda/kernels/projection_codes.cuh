// Formats of kernels/tiles.cuh whose weights are codes: integers or 8-bit floats.
// kernels/quantize_layout.h says what a block holds. Codes become act elements in registers,
// exactly. With group scales a block is multiplied into sums of its own, which are scaled into the
// float32 sums. A min adds its product with the sum of the row's inputs of the block; a zero is
// subtracted from the codes.
//
// Plain version: double loops over the unpacked weights, expect_products
// (tests/testing/quantized_products.h). CudaQuantized.ProductsMatchDoubleLoops
// (tests/cuda/backend/quantized_test.cc) and CudaFp8.ProductsMatchDoubleLoops (fp8_test.cc)
// compare.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/quantize_layout.h"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Constants that make numbers of codes. The base is a number whose last bit is worth 1: a code in
// its low bits makes base + code, and subtracting the base again is exact.
template <class T>
struct CodeBits;

// 128 + n for n < 128.
template <>
struct CodeBits<Bf16> {
  static constexpr uint32_t kBase = 0x43004300u;
  static constexpr uint32_t kMinusBase = 0xc300c300u;
  static constexpr uint32_t kMinusBaseAndEight = 0xc308c308u;
  static constexpr uint32_t kOnes = 0x3f803f80u;
};
// 1024 + n for n < 1024.
template <>
struct CodeBits<Half> {
  static constexpr uint32_t kBase = 0x64006400u;
  static constexpr uint32_t kMinusBase = 0xe400e400u;
  static constexpr uint32_t kMinusBaseAndEight = 0xe408e408u;
  static constexpr uint32_t kOnes = 0x3c003c00u;
};

// Sums and products of two pairs of elements.
template <class T>
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b);
template <class T>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b);

#ifdef SPECDEC_EMULATED
template <class T>
inline uint32_t add_pairs(uint32_t a, uint32_t b) {
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(x.x + y.x, x.y + y.y);
}
template <class T>
inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(x.x * y.x, x.y * y.y);
}
#else
// The same bits as another type of 4 bytes.
template <class To, class From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == 4 && sizeof(From) == 4);
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
template <>
__device__ __forceinline__ uint32_t add_pairs<Bf16>(uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hadd2(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
}
template <>
__device__ __forceinline__ uint32_t add_pairs<Half>(uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hadd2(bits_as<__half2>(a), bits_as<__half2>(b)));
}
template <>
__device__ __forceinline__ uint32_t multiply_pairs<Bf16>(uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hmul2(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
}
template <>
__device__ __forceinline__ uint32_t multiply_pairs<Half>(uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hmul2(bits_as<__half2>(a), bits_as<__half2>(b)));
}
#endif

// A pair of elements from the signed bytes 0 and 2 of a word.
template <class T>
__device__ __forceinline__ uint32_t elements_of_bytes(uint32_t word);
template <>
__device__ __forceinline__ uint32_t elements_of_bytes<Bf16>(uint32_t word) {
  // 128 + the low 7 bits, minus 128, or minus 256 if the sign bit is set.
  return add_pairs<Bf16>((word & 0x007f007fu) | CodeBits<Bf16>::kBase,
                         (word & 0x00800080u) | CodeBits<Bf16>::kMinusBase);
}
template <>
__device__ __forceinline__ uint32_t elements_of_bytes<Half>(uint32_t word) {
  // Flipping the sign bit adds 128.
  return add_pairs<Half>((word & 0x00ff00ffu) ^ 0x64806480u, 0xe480e480u);
}

// A pair of elements from the low halves of bytes 0 and 2 of a word: base + code, and what is added
// to it.
template <class T>
__device__ __forceinline__ uint32_t elements_of_halves(uint32_t word, uint32_t minus_base) {
  return add_pairs<T>((word & 0x000f000fu) | CodeBits<T>::kBase, minus_base);
}

// A pair of elements from the 8-bit floats in bytes 1 and 3 of a word. Their exponent and mantissa,
// shifted to the upper end of T's mantissa, make a number that is too small by a power of two, the
// difference of the exponents' biases; subnormals likewise. Multiplying by that power is exact.
template <class T>
__device__ __forceinline__ uint32_t elements_of_floats(uint32_t word);
template <>
__device__ __forceinline__ uint32_t elements_of_floats<Bf16>(uint32_t word) {
  constexpr uint32_t kScale = 0x7b807b80u;  // 2^120
  return multiply_pairs<Bf16>((word & 0x80008000u) | (word >> 4 & 0x07f007f0u), kScale);
}
template <>
__device__ __forceinline__ uint32_t elements_of_floats<Half>(uint32_t word) {
  constexpr uint32_t kScale = 0x5c005c00u;  // 2^8
  return multiply_pairs<Half>((word & 0x80008000u) | (word >> 1 & 0x3f803f80u), kScale);
}

enum class CodeKind { kInt8, kInt4, kInt4LessEight, kFp8, kInt4Table };

// The A operand of a block's mma 0 or 1 (`step`) from a lane's codes.
template <class T, CodeKind kKind>
__device__ __forceinline__ void operand_of(const uint4& codes, int step, uint32_t (&a)[4]) {
  const uint32_t first = step == 0 ? codes.x : codes.z;
  const uint32_t second = step == 0 ? codes.y : codes.w;
  if constexpr (kKind == CodeKind::kFp8) {
    a[0] = elements_of_floats<T>(first << 8);
    a[1] = elements_of_floats<T>(first);
    a[2] = elements_of_floats<T>(second << 8);
    a[3] = elements_of_floats<T>(second);
  } else {
    a[0] = elements_of_bytes<T>(first);
    a[1] = elements_of_bytes<T>(first >> 8);
    a[2] = elements_of_bytes<T>(second);
    a[3] = elements_of_bytes<T>(second >> 8);
  }
}
// The same from 4-bit codes. minus_base: of outputs g and g + 8.
template <class T>
__device__ __forceinline__ void operand_of(const uint2& codes, int step,
                                           const uint32_t (&minus_base)[2], uint32_t (&a)[4]) {
  const uint32_t word = step == 0 ? codes.x : codes.y;
  a[0] = elements_of_halves<T>(word, minus_base[0]);
  a[1] = elements_of_halves<T>(word >> 8, minus_base[1]);
  a[2] = elements_of_halves<T>(word >> 4, minus_base[0]);
  a[3] = elements_of_halves<T>(word >> 12, minus_base[1]);
}

// The values of 4-bit codes, signed bytes.
struct CodeTable {
  uint4 values;

  __device__ __forceinline__ CodeTable(const ProjectionParams& params, int block_bytes)
      : values(*reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(params.weights) +
                                               int64_t{params.num_tiles} * params.num_k_blocks *
                                                   block_bytes)) {}

  // Of the codes in the lower half of a word, the lowest first. `low` has the codes' lower three
  // bits; `choice` has, for code i, byte i of the values in the table's first half, or 4 + i, of
  // those in its second.
  __device__ __forceinline__ uint32_t look_up(uint32_t low, uint32_t choice) const {
    return __byte_perm(__byte_perm(values.x, values.y, low), __byte_perm(values.z, values.w, low),
                       choice);
  }
};
template <class T>
__device__ __forceinline__ void operand_of(const uint2& codes, int step, const CodeTable& table,
                                           uint32_t (&a)[4]) {
  const uint32_t word = step == 0 ? codes.x : codes.y;
  const uint32_t low = word & 0x77777777u;
  const uint32_t choice = (word >> 1 & 0x44444444u) | 0x32103210u;
  // Bytes: codes of output g, inputs 0 and 2, then of g + 8; the same of inputs 1 and 3.
  const uint32_t even = table.look_up(low, choice);
  const uint32_t odd = table.look_up(low >> 16, choice >> 16);
  const uint32_t first = __byte_perm(even, odd, 0x6420);  // of g and g + 8, input 0, then input 1
  const uint32_t second = __byte_perm(even, odd, 0x7531);
  a[0] = elements_of_bytes<T>(first);
  a[1] = elements_of_bytes<T>(first >> 8);
  a[2] = elements_of_bytes<T>(second);
  a[3] = elements_of_bytes<T>(second >> 8);
}

// kInt8 and kFp8: sums of products with codes; the epilogue multiplies them by the output's scale.
template <class T, CodeKind kKind>
struct OutputScaleFormat {
  using Element = T;
  static constexpr int kBlockBytes = kTileOutputs * kBlockInputs;
  static constexpr int kMaxTilesAtOnce = 1;
  static constexpr int kManyRowsBlocksPerSm = 2;
  static constexpr int kMaxStages = 4;

  using Weights = uint4;

  static __device__ __forceinline__ Weights load_weights(const unsigned char* block, int lane) {
    return ptx::load_streaming(block + lane * 16);
  }
  using Table = NoTable;
  static __device__ __forceinline__ void multiply(float (&sums)[4], const Weights& weights,
                                                  const Inputs& inputs, const Table&) {
    uint32_t a[4];
    operand_of<T, kKind>(weights, 0, a);
    ptx::mma_m16n8k16<T>(sums, a, {inputs.x, inputs.y});
    operand_of<T, kKind>(weights, 1, a);
    ptx::mma_m16n8k16<T>(sums, a, {inputs.z, inputs.w});
  }
};

// Formats with a scale, some with a GroupExtra, per block of an output. 8-bit floats also have a
// scale per output, which the epilogue applies.
template <class T, CodeKind kKind, GroupExtra kExtra = GroupExtra::kNone>
struct GroupedFormat {
  using Element = T;
  static constexpr bool kInt4 = kKind != CodeKind::kInt8 && kKind != CodeKind::kFp8;
  static constexpr bool kHasExtra = kExtra != GroupExtra::kNone;
  static constexpr int kCodesBytes = kTileOutputs * kBlockInputs / (kInt4 ? 2 : 1);
  static constexpr int kBlockBytes = kCodesBytes + kTileOutputs * 2 * (kHasExtra ? 2 : 1);
  static constexpr int kMaxTilesAtOnce = 1;
  static constexpr int kManyRowsBlocksPerSm = 1;
  static constexpr int kMaxStages = kHasExtra && !kInt4 ? 3 : 4;

  struct Weights {
    std::conditional_t<kInt4, uint2, uint4> codes;
    uint32_t scales;  // of outputs g and g + 8
    uint32_t extras;
  };
  using Table = std::conditional_t<kKind == CodeKind::kInt4Table, CodeTable, NoTable>;
  static __device__ __forceinline__ Weights load_weights(const unsigned char* block, int lane) {
    Weights weights;
    if constexpr (kInt4) {
      weights.codes = *reinterpret_cast<const uint2*>(block + lane * 8);
    } else {
      weights.codes = ptx::load_streaming(block + lane * 16);
    }
    const unsigned char* header = block + kCodesBytes;
    if constexpr (kHasExtra) {
      const uint2 both = *reinterpret_cast<const uint2*>(header + lane / 4 * 8);
      weights.scales = both.x;
      weights.extras = both.y;
    } else {
      weights.scales = *reinterpret_cast<const uint32_t*>(header + lane / 4 * 4);
    }
    return weights;
  }

  static __device__ __forceinline__ void multiply(float (&sums)[4], const Weights& weights,
                                                  const Inputs& inputs, const Table& table) {
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint32_t a[4];
    operand(weights, 0, table, a);
    ptx::mma_m16n8k16<T>(part, a, {inputs.x, inputs.y});
    if constexpr (kExtra == GroupExtra::kSecondScale) {
      add(sums, weights.scales, part);
      part[0] = part[1] = part[2] = part[3] = 0.0f;
    }
    operand(weights, 1, table, a);
    ptx::mma_m16n8k16<T>(part, a, {inputs.z, inputs.w});
    add(sums, kExtra == GroupExtra::kSecondScale ? weights.extras : weights.scales, part);
    if constexpr (kExtra == GroupExtra::kMin) {
      // A product with ones gives the sum of a row's inputs, in the registers where the lane needs
      // it, for outputs g and g + 8.
      constexpr uint32_t kOnes = CodeBits<T>::kOnes;
      part[0] = part[1] = part[2] = part[3] = 0.0f;
      ptx::mma_m16n8k16<T>(part, {kOnes, kOnes, kOnes, kOnes}, {inputs.x, inputs.y});
      ptx::mma_m16n8k16<T>(part, {kOnes, kOnes, kOnes, kOnes}, {inputs.z, inputs.w});
      add(sums, weights.extras, {part[0], part[1], part[0], part[1]});
    }
  }

 private:
  static __device__ __forceinline__ void operand(const Weights& weights, int step,
                                                 const Table& table, uint32_t (&a)[4]) {
    using Bits = CodeBits<T>;
    if constexpr (!kInt4) {
      operand_of<T, kKind>(weights.codes, step, a);
    } else if constexpr (kKind == CodeKind::kInt4Table) {
      operand_of<T>(weights.codes, step, table, a);
    } else if constexpr (kExtra == GroupExtra::kZero) {
      // The base's last bit is worth 1, so a zero in its low bits makes -(base + zero).
      const uint32_t first = Bits::kMinusBase | __byte_perm(weights.extras, 0, 0x1010);
      const uint32_t second = Bits::kMinusBase | __byte_perm(weights.extras, 0, 0x3232);
      operand_of<T>(weights.codes, step, {first, second}, a);
    } else {
      constexpr bool kLessEight = kKind == CodeKind::kInt4LessEight;
      constexpr uint32_t kMinus = kLessEight ? Bits::kMinusBaseAndEight : Bits::kMinusBase;
      operand_of<T>(weights.codes, step, {kMinus, kMinus}, a);
    }
  }
  static __device__ __forceinline__ void add(float (&sums)[4], uint32_t factors,
                                             const float (&part)[4]) {
    const float2 factor = unpack<Half>(factors);
    sums[0] = fmaf(factor.x, part[0], sums[0]);
    sums[1] = fmaf(factor.x, part[1], sums[1]);
    sums[2] = fmaf(factor.y, part[2], sums[2]);
    sums[3] = fmaf(factor.y, part[3], sums[3]);
  }
};

template <class T>
using Int8Format = OutputScaleFormat<T, CodeKind::kInt8>;
template <class T>
using Int8GroupedFormat = GroupedFormat<T, CodeKind::kInt8>;
template <class T>
using Int8GroupedMinFormat = GroupedFormat<T, CodeKind::kInt8, GroupExtra::kMin>;
template <class T>
using Int8Grouped16Format = GroupedFormat<T, CodeKind::kInt8, GroupExtra::kSecondScale>;
template <class T>
using Int4GroupedFormat = GroupedFormat<T, CodeKind::kInt4LessEight>;
template <class T>
using Int4GroupedMinFormat = GroupedFormat<T, CodeKind::kInt4, GroupExtra::kMin>;
template <class T>
using Int4GroupedZeroFormat = GroupedFormat<T, CodeKind::kInt4, GroupExtra::kZero>;
template <class T>
using Int4TableFormat = GroupedFormat<T, CodeKind::kInt4Table>;
template <class T>
using Fp8Format = OutputScaleFormat<T, CodeKind::kFp8>;
template <class T>
using Fp8GroupedFormat = GroupedFormat<T, CodeKind::kFp8>;

// Projections with each format, one source file per format.
void project_int8(Stream& stream, const ProjectionParams& params);
void project_int8_grouped(Stream& stream, const ProjectionParams& params);
void project_int8_grouped_min(Stream& stream, const ProjectionParams& params);
void project_int8_grouped16(Stream& stream, const ProjectionParams& params);
void project_int4_grouped(Stream& stream, const ProjectionParams& params);
void project_int4_grouped_min(Stream& stream, const ProjectionParams& params);
void project_int4_grouped_zero(Stream& stream, const ProjectionParams& params);
void project_int4_table(Stream& stream, const ProjectionParams& params);
void project_fp8(Stream& stream, const ProjectionParams& params);
void project_fp8_grouped(Stream& stream, const ProjectionParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
