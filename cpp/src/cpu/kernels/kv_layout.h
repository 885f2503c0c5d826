// Where keys and values lie in the paged cache. Only for files compiled once per ISA.
//
// Tokens lie in groups of 16: [num_kv_heads, num_blocks, block_size / 16] groups. Within a group
// elements lie in words of kPerWord: two of bfloat16, which one dot instruction multiplies, or one
// of float32.
//   keys    [head_dim / kPerWord, 16 tokens, kPerWord]: 16 tokens are one vector
//   values  [16 / kPerWord tokens, head_dim, kPerWord]: words of tokens
// An int8 cache has codes in the order of the activations' dtype, after [16] float32 scales.
#pragma once

#include <cstdint>

#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {

inline constexpr int kGroupTokens = kLanes;

template <class Stored>
inline constexpr int64_t kGroupHeaderBytes = 0;
template <>
inline constexpr int64_t kGroupHeaderBytes<int8_t> = kGroupTokens * sizeof(float);

template <class Stored>
inline int64_t group_bytes(int head_dim) {
  return kGroupHeaderBytes<Stored> + int64_t{kGroupTokens} * head_dim * sizeof(Stored);
}

// Index of the group of a slot (block * block_size + offset) among all groups of keys or values.
inline int64_t group_index(int64_t slot, int kv_head, int num_blocks, int block_size) {
  return kv_head * (int64_t{num_blocks} * (block_size / kGroupTokens)) + slot / kGroupTokens;
}

// Index in a group of element i of a token.
template <int kPerWord>
inline int64_t key_index(int token, int i) {
  return (int64_t{i / kPerWord} * kGroupTokens + token) * kPerWord + i % kPerWord;
}
template <int kPerWord>
inline int64_t value_index(int token, int i, int head_dim) {
  return (int64_t{token / kPerWord} * head_dim + i) * kPerWord + token % kPerWord;
}

}  // namespace specdec::cpu::SPECDEC_ISA
