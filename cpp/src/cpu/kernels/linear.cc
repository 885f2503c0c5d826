#include "cpu/kernels/linear.h"

#include "cpu/kernels/linear_tiles.h"
#include "cpu/kernels/simd_pairs.h"

#if defined(__AMX_BF16__)
#include "cpu/kernels/linear_amx.h"
#endif

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// A dot policy says how a step of k is multiplied: Weights (16 outputs), Factor (one row's x, in
// all lanes) and the accumulation of their product. The tiles must fit into the registers: up to
// kOnePassRows x one block, and kPassRows x kPassBlocks when rows take several passes. Large tiles
// take kUnroll steps at a time, which k is whole multiples of.

struct F32Dot {
  using X = float;
  using Weights = F32x16;
  using Factor = F32x16;
  static constexpr int kStep = 1;
  static constexpr int kUnroll = 1;
#if defined(__AVX512F__)
  static constexpr int kOnePassRows = 16;
  static constexpr int kPassRows = 8;
  static constexpr int kPassBlocks = 3;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int kOnePassRows = 4;
  static constexpr int kPassRows = 4;
  static constexpr int kPassBlocks = 1;
#else
  static constexpr int kOnePassRows = 2;
  static constexpr int kPassRows = 2;
  static constexpr int kPassBlocks = 1;
#endif
  static Weights weights(const float* p) { return load(p); }
  static Factor factor(const float* x) { return broadcast(*x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return fma(w, x, sum); }
};

struct Bf16Dot {
  using X = uint16_t;
  using Weights = Bf16Pairs;
  using Factor = Bf16Pairs;
  static constexpr int kStep = 2;
  static constexpr int kUnroll = 4;
#if defined(__AVX512BF16__)
  static constexpr int kOnePassRows = 16;
  static constexpr int kPassRows = 8;
  static constexpr int kPassBlocks = 3;
#elif defined(__AVX512F__)
  static constexpr int kOnePassRows = 16;
  static constexpr int kPassRows = 8;
  static constexpr int kPassBlocks = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int kOnePassRows = 4;
  static constexpr int kPassRows = 4;
  static constexpr int kPassBlocks = 1;
#else
  static constexpr int kOnePassRows = 2;
  static constexpr int kPassRows = 2;
  static constexpr int kPassBlocks = 1;
#endif
  static Weights weights(const uint16_t* p) { return load_pairs(p); }
  static Factor factor(const uint16_t* x) { return broadcast_pair(x); }
  static F32x16 dot(F32x16 sum, Weights w, Factor x) { return dot_bf16(sum, w, x); }
};

void linear_f32(const LinearTask& task) { run_tiles<F32Dot>(task); }

#if defined(__AMX_BF16__)
void linear_bf16(const LinearTask& task) {
  AmxTiles tiles;
  run_amx_tiles(task, tiles);
}
#else
void linear_bf16(const LinearTask& task) { run_tiles<Bf16Dot>(task); }
#endif

}  // namespace

void add_int_kernels(LinearKernels& kernels);  // linear_int.cc

LinearKernels linear_kernels();
LinearKernels linear_kernels() {
  LinearKernels kernels{{linear_f32, linear_bf16}};
  add_int_kernels(kernels);
  return kernels;
}

}  // namespace specdec::cpu::SPECDEC_ISA
