// The order of sums over k that ranks may share. The inputs of a matrix fall into 8 slices that
// follow from the whole matrix alone. Each slice is summed from zero in order of k, and
//   total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
// in float32. A rank that holds a run of slices sends the sums of the run's maximal aligned
// subtrees of that tree; whoever has all of them finishes the total with the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/check.h"

namespace specdec {

inline constexpr int kNumSlices = 8;
// Partial sums that wait at once, at most, while the slices of a run are summed in order; as many
// are left at its end.
inline constexpr int kMaxPartialSums = 5;
inline constexpr int kMaxSubtrees = 4;

// Slices [first, first + count).
struct SliceRun {
  int first = 0;
  int count = kNumSlices;

  constexpr int end() const { return first + count; }
  constexpr bool is_whole() const { return first == 0 && count == kNumSlices; }
  // The run of rank `rank` of `size`: as equal as whole slices can be.
  static constexpr SliceRun of_rank(int rank, int size) {
    const int first = rank * kNumSlices / size;
    return {first, (rank + 1) * kNumSlices / size - first};
  }
  bool operator==(const SliceRun&) const = default;
};

// The slice bounds of a whole matrix, and the run of slices that a weight holds.
struct KSlices {
  std::array<int64_t, kNumSlices + 1> bounds{};  // slice s: inputs [bounds[s], bounds[s + 1])
  SliceRun run;

  // The slices of `in_features` inputs, cut between units of `unit` inputs; the last unit may be a
  // part of one. Slices may be empty.
  static constexpr KSlices whole(int64_t in_features, int64_t unit) {
    SPECDEC_CHECK(in_features > 0 && unit > 0);
    KSlices slices;
    const int64_t num_units = (in_features + unit - 1) / unit;
    for (int s = 0; s < kNumSlices; ++s) slices.bounds[s] = s * num_units / kNumSlices * unit;
    slices.bounds[kNumSlices] = in_features;
    return slices;
  }
  constexpr KSlices cut(SliceRun to) const {
    SPECDEC_CHECK(to.first >= run.first && to.count >= 0 && to.end() <= run.end());
    return {bounds, to};
  }
  constexpr int64_t whole_features() const { return bounds[kNumSlices]; }
  // The run's inputs, as a range of the inputs of the whole matrix.
  constexpr int64_t begin() const { return bounds[run.first]; }
  constexpr int64_t end() const { return bounds[run.end()]; }
  constexpr int64_t in_features() const { return end() - begin(); }
  // Start of the run's i-th slice among the run's own inputs; i = count: the end of the last slice.
  constexpr int64_t local_bound(int i) const { return bounds[run.first + i] - begin(); }
};

// Up to kMaxCount nodes of the tree.
template <int kMaxCount>
struct SliceNodes {
  std::array<SliceRun, kMaxCount> nodes{};
  int count = 0;

  constexpr void push(SliceRun node) {
    SPECDEC_CHECK(count < kMaxCount);
    nodes[count++] = node;
  }
  constexpr const SliceRun* begin() const { return nodes.data(); }
  constexpr const SliceRun* end() const { return nodes.data() + count; }
  constexpr std::span<const SliceRun> span() const { return {begin(), end()}; }
};

// The largest subtrees of the tree that lie in `run`, in order: [2, 5) has {2, 3} and {4}.
constexpr SliceNodes<kMaxSubtrees> subtrees_of(SliceRun run) {
  SliceNodes<kMaxSubtrees> subtrees;
  for (int first = run.first; first < run.end();) {
    int size = kNumSlices;
    while (first % size != 0 || first + size > run.end()) size /= 2;
    subtrees.push({first, size});
    first += size;
  }
  return subtrees;
}

// Tells what to do with a stack of partial sums after the sum of one more node is computed.
struct FoldEntry {
  int num_folds = 0;    // number of times that sum = top of the stack + sum
  int stack_index = 0;  // then the sum is put here, on top
  bool is_left = true;  // no later entry folds it
};

struct FoldOrder {
  FoldEntry entries[kNumSlices] = {};  // as kernels of a device can read them
  int num_entries = 0;
  int num_left = 0;  // sums on the stack at the end: the run's subtrees, in order
};

// Folds `nodes`, which are neighbours in rising order, into the subtrees of the run they cover.
constexpr FoldOrder fold_order_of(std::span<const SliceRun> nodes) {
  FoldOrder order;
  std::array<SliceRun, kMaxPartialSums> stack{};
  std::array<int, kMaxPartialSums> origin{};  // the entry that put it there
  int depth = 0;
  for (SliceRun node : nodes) {
    SPECDEC_CHECK(order.num_entries == 0 || stack[depth - 1].end() == node.first);
    FoldEntry& entry = order.entries[order.num_entries];
    // The two have equal size and together form a node: they are siblings.
    while (depth > 0 && stack[depth - 1].count == node.count &&
           stack[depth - 1].first % (2 * node.count) == 0) {
      --depth;
      order.entries[origin[depth]].is_left = false;
      node = {stack[depth].first, 2 * node.count};
      ++entry.num_folds;
    }
    SPECDEC_CHECK(depth < kMaxPartialSums);
    entry.stack_index = depth;
    origin[depth] = order.num_entries++;
    stack[depth++] = node;
  }
  order.num_left = depth;
  return order;
}

// The order for the slices of a run, one after another.
constexpr FoldOrder fold_order_of(SliceRun run) {
  SliceNodes<kNumSlices> slices;
  for (int s = run.first; s < run.end(); ++s) slices.push({s, 1});
  return fold_order_of(slices.span());
}

// Folds sums [order.num_entries] in place; the remaining sums are at the front of `sums`.
inline void fold(const FoldOrder& order, float* sums) {
  for (int i = 0; i < order.num_entries; ++i) {
    const FoldEntry& entry = order.entries[i];
    float sum = sums[i];
    for (int f = 0; f < entry.num_folds; ++f)
      sum = sums[entry.stack_index + entry.num_folds - 1 - f] + sum;
    sums[entry.stack_index] = sum;  // stack_index <= i
  }
}

}  // namespace specdec
