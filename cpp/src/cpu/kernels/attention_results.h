// Results of the chunks of a task: where they are stored, merged in order and written out. Only for
// files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/integers.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {

struct ChunkResults {
  explicit ChunkResults(const AttentionTask& t) : task(t) {}

  const AttentionTask& task;
  const int num_pairs = task.num_rows * task.group_size;
  const int acc_stride = round_up(task.head_dim, kLanes);
  const int partial_stride = acc_stride + kPartialExtra;

  // Where the results of a chunk are stored, and where chunks are merged.
  float* partials(int chunk) const {
    if (task.partials == nullptr) return task.accumulators;
    return task.partials + int64_t{chunk - task.first_chunk} * num_pairs * partial_stride;
  }
  float* totals() const { return task.accumulators + int64_t{num_pairs} * partial_stride; }

  void clear_totals() const {
    for (int pair = 0; pair < num_pairs; ++pair) {
      store(totals() + int64_t{pair} * partial_stride + acc_stride + kLanes,
            broadcast(-__builtin_inff()));
    }
  }

  // Adds the results of a chunk to the totals.
  void merge(const float* chunk) const {
    const float nothing = -__builtin_inff();
    float* total = totals();
    for (int pair = 0; pair < num_pairs; ++pair) {
      merge_pair(chunk, total, nothing);
      chunk += partial_stride;
      total += partial_stride;
    }
  }
  void merge_pair(const float* chunk, float* total, float nothing) const {
    const int top = acc_stride + kLanes;
    if (chunk[top] == nothing) return;
    if (total[top] == nothing) {
      for (int i = 0; i < partial_stride; i += kLanes) store(total + i, load(chunk + i));
      return;
    }
    const F32x16 old_top = load(total + top), new_top = load(chunk + top);
    const F32x16 smaller = exp2_negative(zero() - abs(old_top - new_top));
    const F32x16 one = broadcast(1.0f);
    const F32x16 old_factor = select_less(old_top, new_top, smaller, one);
    const F32x16 new_factor = select_less(old_top, new_top, one, smaller);
    for (int i = 0; i <= acc_stride; i += kLanes) {  // the sums lie behind the accumulators
      store(total + i, fma(load(chunk + i), new_factor, load(total + i) * old_factor));
    }
    store(total + top, max(old_top, new_top));
  }

  template <class Element>
  void write_out() const {
    for (int pair = 0; pair < num_pairs; ++pair) {
      const float* total = totals() + int64_t{pair} * partial_stride;
      const int row = pair / task.group_size, head = pair % task.group_size;
      Element* out = static_cast<Element*>(task.out) + row * task.row_stride + head * task.head_dim;
      F32x16 sum = broadcast(reduce_add(load(total + acc_stride)));
      if (task.sinks != nullptr) {
        sum = sum + weight_of_sink(task.sinks[head], load(total + acc_stride + kLanes));
      }
      for (int i = 0; i < task.head_dim; i += kLanes) {
        // A result of zero comes out positive, whatever the signs of the terms.
        const F32x16 result = (load(total + i) + zero()) / sum;
        store_lanes(out + i, result, min_of(kLanes, task.head_dim - i));
      }
    }
  }
};

}  // namespace specdec::cpu::SPECDEC_ISA
