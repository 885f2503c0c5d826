#include "cpu/kernels/linear.h"

#include <type_traits>

#include "cpu/kernels/linear_tiles.h"
#include "cpu/kernels/prefetch.h"
#include "cpu/kernels/simd_pairs.h"

#if defined(__AMX_BF16__)
#include "cpu/kernels/linear_amx.h"
#endif

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// A dot policy says how a step of k is multiplied, as kParts parts one after the other: Weights (16
// outputs), Factor (one row's x, in all lanes) and the accumulation of their product. The tiles
// must fit into the registers: up to kOnePassRows x one block, and kPassRows x kPassBlocks when
// rows take several passes over kGroupBytes of weights. Large tiles take kUnroll steps at a time,
// and k is a multiple of kUnroll steps.

#if defined(__AVX512F__)
// Sums take 24 registers, which leaves one for each block's weights and one for x.
constexpr int kOneBlockRows = 16;
constexpr int kGroupRows = 8;
constexpr int kGroupBlocks = 3;
#elif defined(__AVX2__) || defined(__aarch64__)
// Sums take twelve registers, weights two and x one. Two FMA units with a latency of four need
// fewer independent products than twelve, and there are fewer loads than products.
constexpr int kOneBlockRows = 6;
constexpr int kGroupRows = 6;
constexpr int kGroupBlocks = 1;
#else
constexpr int kOneBlockRows = 2;
constexpr int kGroupRows = 2;
constexpr int kGroupBlocks = 1;
#endif
// Half of a small L2: the next group arrives in the other half
constexpr int64_t kHalfL2Bytes = 512 << 10;

template <PrefetchInto kInto>
struct F32Dot {
  static constexpr PrefetchInto kPrefetchInto = kInto;
  using X = float;
  using W = float;
  using Weights = F32x16;
  using Factor = F32x16;
  static constexpr int kDotDepth = 1;
  static constexpr int kParts = 1;
  static constexpr int kUnroll = 1;
  static constexpr int kOnePassRows = kOneBlockRows;
  static constexpr int kPassRows = kGroupRows;
  static constexpr int kPassBlocks = kGroupBlocks;
  static constexpr int64_t kGroupBytes = kHalfL2Bytes;
  static Weights weights(const float* p, int) { return load(p); }
  static Factor factor(const float* x, int) { return broadcast(*x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return fma(w, x, sum); }
};

#if defined(SPECDEC_MULTIPLIES_BF16_PAIRS)
template <PrefetchInto kInto>
struct Bf16Dot {
  static constexpr PrefetchInto kPrefetchInto = kInto;
  using X = uint16_t;
  using W = uint16_t;
  using Weights = Bf16Pairs;
  using Factor = Bf16Pairs;
  static constexpr int kDotDepth = 2;
  static constexpr int kParts = 1;
  static constexpr int kUnroll = 4;
  static constexpr int kOnePassRows = kOneBlockRows;
  static constexpr int kPassRows = kGroupRows;
  static constexpr int kPassBlocks = kGroupBlocks;
  static constexpr int64_t kGroupBytes = kHalfL2Bytes;
  static Weights weights(const uint16_t* p, int) { return load_pairs(p); }
  static Factor factor(const uint16_t* x, int) { return broadcast_pair(x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return dot_bf16(sum, w, x); }
};
#else
// Without an instruction for pairs, rows come as float32, so that one load gives a factor. The
// halves of a pair are multiplied one after the other, in the order of dot_bf16.
template <PrefetchInto kInto>
struct Bf16Dot {
  static constexpr PrefetchInto kPrefetchInto = kInto;
  using X = float;
  using W = uint16_t;
  using Weights = F32x16;
  using Factor = F32x16;
  static constexpr int kDotDepth = 2;
  static constexpr int kParts = 2;
  static constexpr int kUnroll = 4;
  static constexpr int kOnePassRows = kOneBlockRows;
  static constexpr int kPassRows = kGroupRows;
  static constexpr int kPassBlocks = kGroupBlocks;
  // With one block, the weights stay in the level-1 cache beside the rows of a pass.
  static constexpr int64_t kGroupBytes = kPassBlocks == 1 ? 16 << 10 : kHalfL2Bytes;
  static Weights weights(const uint16_t* p, int part) {
    return part == 0 ? load_second(p) : load_first(p);
  }
  static Factor factor(const float* x, int part) { return broadcast(x[1 - part]); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return fma(w, x, sum); }
};
#endif
constexpr bool kWidensBf16 = !std::is_same_v<Bf16Dot<PrefetchInto::kL1>::X, uint16_t>;

template <template <PrefetchInto> class Dot, PrefetchInto kInto>
void linear(const LinearTask& task) {
  run_tiles<Dot<kInto>, Dot<PrefetchInto::kL1>>(task);
}

template <PrefetchInto kInto>
void set_float_kernels(LinearKernels& kernels) {
  kernels.run[kPackedF32] = linear<F32Dot, kInto>;
  kernels.run[kPackedBf16] = linear<Bf16Dot, kInto>;
}

#if defined(__AMX_BF16__)
void linear_amx(const LinearTask& task) {
  AmxTiles tiles;
  run_amx_tiles(task, tiles);
}
#endif

}  // namespace

// Linear_int.cc; sets widens_int8, too
void add_int_kernels(PrefetchInto into, LinearKernels& kernels);

LinearKernels linear_kernels(PrefetchInto into);
LinearKernels linear_kernels(PrefetchInto into) {
  LinearKernels kernels{};
  kernels.widens_bf16 = kWidensBf16;
  set_float_kernels<PrefetchInto::kL1>(kernels);
  if constexpr (kProjectionsIntoL2) {
    if (into == PrefetchInto::kL2) set_float_kernels<PrefetchInto::kL2>(kernels);
  }
#if defined(__AMX_BF16__)
  kernels.run[kPackedBf16] = linear_amx;
#endif
  add_int_kernels(into, kernels);
  return kernels;
}

}  // namespace specdec::cpu::SPECDEC_ISA
