// Elements of attention by dtype of the activations: words of keys, values and weights, and how
// int8 groups of the cache are unpacked. Only for files compiled once per ISA.
#pragma once

#include "cpu/kernels/kv_layout.h"
#include "cpu/kernels/math.h"
#include "cpu/kernels/simd_pairs.h"

namespace specdec::cpu::SPECDEC_ISA {

struct F32Words {
  using Word = float;
  using Element = float;
  static constexpr int kPerWord = 1;
  static F32x16 load_word(const float* p) { return load(p); }
  static F32x16 broadcast_word(const float* p) { return broadcast(*p); }
  static F32x16 dot(F32x16 acc, F32x16 a, F32x16 b) { return fma(a, b, acc); }
  static F32x16 exp2(F32x16 t) { return exp2_negative(t); }
  static void store_weights(float* p, F32x16 a, F32x16 b) {
    store(p, a);
    store(p + kLanes, b);
  }
  static F32x16 add_weights(F32x16 sum, const float* p) { return sum + load(p) + load(p + kLanes); }
  // Unpacks sixteen tokens. Codes and out are in the order of kv_layout.h.
  static void unpack_keys(const int8_t* codes, const float* scales, int head_dim, float* out) {
    const F32x16 scale = load(scales);
    for (int i = 0; i < head_dim * kLanes; i += kLanes) store(out + i, load_i8(codes + i) * scale);
  }
  static void unpack_values(const int8_t* codes, const float* scales, int head_dim, float* out) {
    for (int token = 0; token < kGroupTokens; ++token) {
      const F32x16 scale = broadcast(scales[token]);
      // Writes past head_dim when it is no multiple of 16; the next token overwrites that part.
      for (int i = 0; i < head_dim; i += kLanes) store(out + i, load_i8(codes + i) * scale);
      codes += head_dim;
      out += head_dim;
    }
  }
  // A word of values: element i of the tokens whose rows are given, of which parts[.] counts.
  static void join_values(const float* const* rows, const int*, int head_dim, float* out) {
    for (int i = 0; i < head_dim; ++i) out[i] = rows[0][i];
  }
};

struct Bf16Words {
  using Word = uint32_t;
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Bf16Pairs load_word(const uint32_t* p) { return load_pairs(p); }
  static Bf16Pairs broadcast_word(const uint32_t* p) { return broadcast_pair(p); }
  static F32x16 dot(F32x16 acc, Bf16Pairs a, Bf16Pairs b) { return dot_bf16(acc, a, b); }
  static F32x16 exp2(F32x16 t) { return exp2_negative_coarse(t); }
  static void store_weights(uint32_t* p, F32x16 a, F32x16 b) {
    store_bf16(reinterpret_cast<uint16_t*>(p), a, b);
  }
  static F32x16 add_weights(F32x16 sum, const uint32_t* p) {
    const uint32_t ones = 0x3f803f80u;
    return dot_bf16(sum, load_pairs(p), broadcast_pair(&ones));
  }
  static void unpack_keys(const int8_t* codes, const float* scales, int head_dim, uint32_t* out) {
    const F32x16 low = double_low(load(scales)), high = double_high(load(scales));
    for (int i = 0; i < head_dim * kLanes; i += 2 * kLanes) {
      store_bf16(reinterpret_cast<uint16_t*>(out) + i, load_i8(codes + i) * low,
                 load_i8(codes + i + kLanes) * high);
    }
  }
  static void unpack_values(const int8_t* codes, const float* scales, int head_dim, uint32_t* out) {
    for (int token = 0; token < kGroupTokens; token += 2) {
      const F32x16 scale = alternate(scales[token], scales[token + 1]);
      // Writes past head_dim when it is no multiple of 16; the next tokens overwrite that part.
      for (int i = 0; i < 2 * head_dim; i += 2 * kLanes) {
        store_bf16(reinterpret_cast<uint16_t*>(out) + i, load_i8(codes + i) * scale,
                   load_i8(codes + i + kLanes) * scale);
      }
      codes += 2 * head_dim;
      out += head_dim;
    }
  }
  static void join_values(const uint32_t* const* rows, const int* parts, int head_dim,
                          uint32_t* out) {
    const int first = 16 * parts[0], second = 16 * parts[1];
    for (int i = 0; i < head_dim; ++i) {
      out[i] = ((rows[0][i] >> first) & 0xffffu) | ((rows[1][i] >> second) << 16);
    }
  }
};

}  // namespace specdec::cpu::SPECDEC_ISA
