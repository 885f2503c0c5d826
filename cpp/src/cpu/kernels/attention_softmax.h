// Turns the scores of a row and head in a chunk into weights. Only for files compiled once per ISA.
#pragma once

#include "cpu/kernels/integers.h"
#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {

// No score is lower; its weight is 0.
inline constexpr float kLowest = -1e30f;
inline constexpr float kLog2E = 0x1.715476p+0f;

// What a sink adds to the sum of weights 2^(score - top), the same in all lanes. Infinity where the
// sink is so far above all scores that the results are 0.
inline F32x16 weight_of_sink(float sink, F32x16 top) {
  const F32x16 score = broadcast(sink * kLog2E);
  const F32x16 smaller = exp2_negative(max(zero() - abs(score - top), broadcast(kLowest)));
  return select_less(top, score, broadcast(1.0f) / smaller, smaller);
}

// Caps the scores [begin, end), from the vector that holds `begin` on.
inline void cap_scores(float* s, int begin, int end, float cap) {
  for (int i = begin; i < end; i += kLanes) {
    store(s + i, soft_cap(load(s + i), cap * kLog2E));
  }
}

// Hides the scores of [0, limit) outside [begin, end).
inline void hide_scores(float* s, int begin, int end, int limit) {
  for (int i = 0; i + kLanes <= begin; i += kLanes) store(s + i, broadcast(kLowest));
  for (int i = round_down(begin, kLanes); i < begin; ++i) s[i] = kLowest;
  for (int i = round_down(end, kLanes); i < limit; i += kLanes) {
    store(s + i, load_partial(s + i, max_of(end - i, 0), kLowest));
  }
}

// Weights of scores [0, count), a multiple of two vectors; their sums and maximum to `totals`.
template <class T>
void weigh_scores(const float* s, int count, typename T::Word* words, float* totals) {
  constexpr int kWidth = 2 * kLanes;
  F32x16 first = load(s), second = load(s + kLanes);
  for (int i = kWidth; i < count; i += kWidth) {
    first = max(first, load(s + i));
    second = max(second, load(s + i + kLanes));
  }
  const F32x16 top = broadcast(reduce_max(max(first, second)));
  F32x16 sum = zero();
  for (int i = 0; i < count; i += kWidth) {
    typename T::Word* const out = words + i / T::kPerWord;
    T::store_weights(out, T::exp2(load(s + i) - top), T::exp2(load(s + i + kLanes) - top));
    sum = T::add_weights(sum, out);
  }
  store(totals, sum);
  store(totals + kLanes, top);
}

}  // namespace specdec::cpu::SPECDEC_ISA
