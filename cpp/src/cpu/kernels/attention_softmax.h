// Softmax of attention: scores become weights within a chunk, and chunks are merged in order. Only
// for files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/attention_rows.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {

// No score is below this one, whose weight is 0.
inline constexpr float kLowest = -1e30f;
inline constexpr float kLog2E = 0x1.715476p+0f;

// Hides the scores of [0, limit) outside of [begin, end).
inline void hide_scores(float* scores, int begin, int end, int limit) {
  for (int i = 0; i + kLanes <= begin; i += kLanes) store(scores + i, broadcast(kLowest));
  for (int i = round_down(begin, kLanes); i < begin; ++i) scores[i] = kLowest;
  for (int i = round_down(end, kLanes); i < limit; i += kLanes) {
    store(scores + i, load_partial(scores + i, max_of(end - i, 0), kLowest));
  }
}

// Weights 2^(score - maximum) of `count` scores, a multiple of two vectors. Writes their sums, in
// 16 lanes, and the maximum to `totals`.
template <class T>
void weigh_scores(const float* scores, int count, typename T::Word* words, float* totals) {
  constexpr int kStep = 2 * kLanes;
  F32x16 first = load(scores), second = load(scores + kLanes);
  for (int i = kStep; i < count; i += kStep) {
    first = max(first, load(scores + i));
    second = max(second, load(scores + i + kLanes));
  }
  const F32x16 top = broadcast(reduce_max(max(first, second)));
  F32x16 sum = zero();
  for (int i = 0; i < count; i += kStep) {
    typename T::Word* const out = words + i / T::kPerWord;
    T::store_weights(out, T::exp2(load(scores + i) - top),
                     T::exp2(load(scores + i + kLanes) - top));
    sum = T::add_weights(sum, out);
  }
  store(totals, sum);
  store(totals + kLanes, top);
}

// The results of a task's (row, head) pairs, of chunks and merged. Each is [stride()]: width()
// weighted values, 16 sums of weights, and the maximum 16 times.
class AttentionSums {
 public:
  explicit AttentionSums(const AttentionTask& task)
      : task_(task),
        num_pairs_(task.num_rows * task.group_size),
        width_(round_up(task.head_dim, kLanes)),
        stride_(width_ + kPartialExtra) {}

  int width() const { return width_; }
  int stride() const { return stride_; }

  // Where the results of a chunk go, [num_pairs, stride()].
  float* chunk(int chunk) const {
    if (task_.partials == nullptr) return task_.accumulators;
    return task_.partials + int64_t{chunk - task_.first_chunk} * num_pairs_ * stride_;
  }
  // The result of a pair that sees nothing of a chunk.
  void hide(float* pair) const { store(pair + width_ + kLanes, broadcast(-__builtin_inff())); }

  void clear_totals() const {
    for (int pair = 0; pair < num_pairs_; ++pair) hide(totals() + int64_t{pair} * stride_);
  }

  // Adds the results of a chunk to the totals.
  void merge(const float* chunk) const {
    float* total = totals();
    for (int pair = 0; pair < num_pairs_; ++pair) {
      merge_pair(chunk, total);
      chunk += stride_;
      total += stride_;
    }
  }

  template <class Element>
  void write_out() const {
    for (int pair = 0; pair < num_pairs_; ++pair) {
      const float* total = totals() + int64_t{pair} * stride_;
      const int row = pair / task_.group_size, head = pair % task_.group_size;
      Element* out =
          static_cast<Element*>(task_.out) + row * task_.row_stride + head * task_.head_dim;
      const F32x16 sum = broadcast(reduce_add(load(total + width_)));
      for (int i = 0; i < task_.head_dim; i += kLanes) {
        // Adding zero makes every zero positive, however it came about.
        const F32x16 result = (load(total + i) + zero()) / sum;
        store_lanes(out + i, result, min_of(kLanes, task_.head_dim - i));
      }
    }
  }

 private:
  float* totals() const { return task_.accumulators + int64_t{num_pairs_} * stride_; }

  void merge_pair(const float* chunk, float* total) const {
    const float nothing = -__builtin_inff();
    const int top = width_ + kLanes;
    if (chunk[top] == nothing) return;
    if (total[top] == nothing) {
      for (int i = 0; i < stride_; i += kLanes) store(total + i, load(chunk + i));
      return;
    }
    const F32x16 old_top = load(total + top), new_top = load(chunk + top);
    const F32x16 smaller = exp2_negative(zero() - abs(old_top - new_top));
    const F32x16 one = broadcast(1.0f);
    const F32x16 old_factor = select_less(old_top, new_top, smaller, one);
    const F32x16 new_factor = select_less(old_top, new_top, one, smaller);
    for (int i = 0; i <= width_; i += kLanes) {  // the sums lie behind the values
      store(total + i, fma(load(chunk + i), new_factor, load(total + i) * old_factor));
    }
    store(total + top, max(old_top, new_top));
  }

  const AttentionTask& task_;
  const int num_pairs_;
  const int width_;
  const int stride_;
};

}  // namespace specdec::cpu::SPECDEC_ISA
