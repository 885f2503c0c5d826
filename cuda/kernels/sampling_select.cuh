// Selection within a row by one block of threads, without sorting it. All operations add integers
// or compare, so results do not depend on the order of threads.
#pragma once

#include "cuda/kernels/sampling_row.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kDigitBits = 10;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kListCapacity = 4096;

static_assert(kMaxListed <= kSelectThreads, "a thread sorts one key");
static_assert(kBins == 2 * kSelectThreads, "a thread scans two bins");

struct SelectShared {
  uint64_t keys[kMaxListed];  // results of list_top, sorted
  uint64_t warp_sums[kSelectWarps];
  uint64_t rank;
  uint64_t before;
  uint64_t weight;
  double sum;
  uint32_t low[kBins];  // weights of bins, in halves: shared memory atomics have 32 bits
  uint32_t high[kBins];
  float values[kListCapacity];  // results of gather
  int32_t tokens[kListCapacity];
  int count;
  int bin;
};

static_assert(sizeof(SelectShared) <= 48 * 1024, "what every device gives a block unasked");

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

// The sum over all threads, and with `prefix` over those before this one.
__device__ inline uint64_t block_sum(SelectShared& shared, uint64_t value,
                                     uint64_t* prefix = nullptr) {
  uint64_t sum = value;
#pragma unroll 1
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint64_t below = __shfl_up_sync(0xffffffffu, sum, delta);
    if (lane_index() >= delta) sum += below;
  }
  __syncthreads();
  if (lane_index() == 31) shared.warp_sums[warp_index()] = sum;
  __syncthreads();
  uint64_t total = 0;
  uint64_t before = 0;
  for (int warp = 0; warp < kSelectWarps; ++warp) {
    if (warp == warp_index()) before = total;
    total += shared.warp_sums[warp];
  }
  if (prefix != nullptr) *prefix = before + sum - value;
  return total;
}

// The least key of all threads.
__device__ inline uint64_t block_min(SelectShared& shared, uint64_t key) {
#pragma unroll 1
  for (int delta = 16; delta > 0; delta /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, key, delta);
    key = other < key ? other : key;
  }
  __syncthreads();
  if (lane_index() == 0) shared.warp_sums[warp_index()] = key;
  __syncthreads();
  for (int warp = 0; warp < kSelectWarps; ++warp) {
    const uint64_t other = shared.warp_sums[warp];
    key = other < key ? other : key;
  }
  return key;
}

// Calls visit(value, token) for every token of the blocks whose maximum is at least the bound.
template <class Visit>
__device__ __forceinline__ void visit_blocks(const RowView& view, const float* maxima, float bound,
                                             const Visit& visit) {
  const int num_blocks = view.num_blocks();
  for (int base = warp_index() * 32; base < num_blocks; base += kSelectThreads) {
    const int mine = base + lane_index();
    uint32_t blocks = __ballot_sync(0xffffffffu, mine < num_blocks && maxima[mine] >= bound);
    for (; blocks != 0; blocks &= blocks - 1) {
      const int first = (base + __ffs(static_cast<int>(blocks)) - 1) * kSampleBlock + lane_index();
      const int second = first + 32;
      const float first_value = first < view.vocab_size ? view.value(first) : 0.0f;
      const float second_value = second < view.vocab_size ? view.value(second) : 0.0f;
      if (first < view.vocab_size) visit(first_value, first);
      if (second < view.vocab_size) visit(second_value, second);
    }
  }
}

// The tokens whose value is at least `threshold`: a list in shared memory or, if that is too short,
// the blocks that they lie in.
struct Gathered {
  const SelectShared* shared;
  const RowView* view;
  const float* maxima;
  float bound;
  float threshold;
  int count;

  template <class Visit>
  __device__ __forceinline__ void visit(const Visit& visit) const {
    if (count <= kListCapacity) {
      for (int i = threadIdx.x; i < count; i += kSelectThreads) {
        visit(shared->values[i], shared->tokens[i]);
      }
      return;
    }
    const float least = threshold;
    visit_blocks(*view, maxima, bound, [&visit, least](float value, int32_t token) {
      if (value >= least) visit(value, token);
    });
  }
};

__device__ inline Gathered gather(SelectShared& shared, const RowView& view, const float* maxima,
                                  float bound, float threshold) {
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  visit_blocks(view, maxima, bound, [&](float value, int32_t token) {
    if (!(value >= threshold)) return;
    const int index = atomicAdd(&shared.count, 1);
    if (index >= kListCapacity) return;
    shared.values[index] = value;
    shared.tokens[index] = token;
  });
  __syncthreads();
  return {&shared, &view, maxima, bound, threshold, shared.count};
}

struct Selected {
  uint32_t rank = 0;    // where the target is reached; else the last rank with a weight
  uint32_t last = 0;    // the same, or the last of the ranks that coarse_bits merges
  uint64_t before = 0;  // weight of lesser ranks
  uint64_t weight = 0;  // weight of this one
  uint64_t target = 0;
  bool reached = false;
};

// Adds to a bin; exact whatever the order.
__device__ __forceinline__ void add_weight(SelectShared& shared, uint32_t bin, uint64_t weight) {
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t old = atomicAdd(&shared.low[bin], low);
  const uint32_t carry = old + low < old ? 1u : 0u;
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + carry;
  if (high != 0) atomicAdd(&shared.high[bin], high);
}

__device__ __forceinline__ uint64_t bin_weight(const SelectShared& shared, int bin) {
  return static_cast<uint64_t>(shared.high[bin]) << 32 | shared.low[bin];
}

// Finds the first bin at which before + sum reaches the target, else the last bin that is not empty
// (-1: all are). Every thread gets the same.
__device__ inline void find_bin(SelectShared& shared, uint64_t total, uint64_t prefix,
                                Selected& result) {
  const int mine = 2 * static_cast<int>(threadIdx.x);
  const uint64_t first = bin_weight(shared, mine);
  const uint64_t second = bin_weight(shared, mine + 1);
  if (threadIdx.x == 0) shared.bin = -1;
  __syncthreads();
  result.reached = result.before + total >= result.target;
  const uint64_t begin = result.before + prefix;
  if (result.reached) {
    if (begin < result.target && begin + first >= result.target) {
      shared.bin = mine;
    } else if (begin + first < result.target && begin + first + second >= result.target) {
      shared.bin = mine + 1;
    }
  } else if (first != 0 || second != 0) {
    atomicMax(&shared.bin, second != 0 ? mine + 1 : mine);
  }
  __syncthreads();
  if (shared.bin == mine) {
    shared.before = begin;
    shared.weight = first;
  } else if (shared.bin == mine + 1) {
    shared.before = begin + first;
    shared.weight = second;
  }
  __syncthreads();
}

// A search: for the least rank in [low, high] such that all ranks up to it together weigh at least
// `target` or, with `fraction` > 0, that share of the whole range.
struct SelectRange {
  uint32_t low;
  uint32_t high;
  uint64_t target;
  double fraction = 0.0;
  int coarse_bits = 0;  // so many low bits of a rank need not be found

  __device__ __forceinline__ uint64_t target_of(uint64_t total) const {
    const uint64_t aim = fraction > 0.0
                             ? static_cast<uint64_t>(ceil(fraction * static_cast<double>(total)))
                             : target;
    return aim > 0 ? aim : 1;
  }
};

// visit(add) calls add(rank, weight) for every element. It runs several times and must always give
// the same.
template <class Visit>
__device__ inline Selected select(SelectShared& shared, const SelectRange& range,
                                  const Visit& visit) {
  Selected result;
  uint32_t low = range.low;
  uint32_t high = range.high;
  for (bool is_first = true;; is_first = false) {
    int shift = 0;
    while (((high - low) >> shift) >= kBins) ++shift;
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kSelectThreads) shared.low[i] = shared.high[i] = 0;
    __syncthreads();
    visit([&](uint32_t rank, uint64_t weight) {
      if (rank >= low && rank <= high) add_weight(shared, (rank - low) >> shift, weight);
    });
    __syncthreads();
    const int mine = 2 * static_cast<int>(threadIdx.x);
    uint64_t prefix;
    const uint64_t total =
        block_sum(shared, bin_weight(shared, mine) + bin_weight(shared, mine + 1), &prefix);
    if (is_first) result.target = range.target_of(total);
    find_bin(shared, total, prefix, result);
    if (shared.bin < 0) return result;
    result.before = shared.before;
    result.weight = shared.weight;
    const uint32_t bin_low = low + (static_cast<uint32_t>(shared.bin) << shift);
    const uint32_t last = bin_low + ((1u << shift) - 1);
    high = last < high ? last : high;
    low = bin_low;
    result.rank = low;
    result.last = high;
    if (shift <= range.coarse_bits) return result;
  }
}

struct Measured {
  uint32_t rank;
  uint64_t weight;
};

// The same for at most kSelectThreads gathered tokens: a thread sums up what ranks before its
// element.
template <class Measure>
__device__ inline Selected select_few(SelectShared& shared, const Gathered& gathered,
                                      const SelectRange& range, const Measure& measure) {
  const int mine = threadIdx.x;
  const int count = gathered.count;
  Measured own = {0, 0};
  __syncthreads();
  if (mine < count) {
    own = measure(shared.values[mine], shared.tokens[mine]);
    if (own.rank < range.low || own.rank > range.high) own.weight = 0;
    shared.low[mine] = own.rank;
    shared.keys[mine] = own.weight;
  }
  if (mine == 0) shared.rank = shared.before = shared.weight = 0;
  __syncthreads();
  uint64_t total = 0;
  uint64_t before = 0;
  uint64_t alike = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t weight = shared.keys[i];
    total += weight;
    if (shared.low[i] < own.rank) before += weight;
    if (shared.low[i] == own.rank) alike += weight;
  }
  Selected result;
  result.target = range.target_of(total);
  result.reached = total >= result.target;
  // Elements of equal rank write the same values.
  const uint64_t aim = result.reached ? result.target : total;
  if (own.weight > 0 && before < aim && before + alike >= aim) {
    shared.rank = own.rank;
    shared.before = before;
    shared.weight = alike;
  }
  __syncthreads();
  result.rank = result.last = static_cast<uint32_t>(shared.rank);
  result.before = shared.before;
  result.weight = shared.weight;
  return result;
}

// measure(value, token) gives the rank and weight of a gathered token.
template <class Measure>
__device__ inline Selected select_gathered(SelectShared& shared, const Gathered& gathered,
                                           const SelectRange& range, const Measure& measure) {
  if (gathered.count <= kSelectThreads) return select_few(shared, gathered, range, measure);
  return select(shared, range, [&](const auto& add) {
    gathered.visit([&](float value, int32_t token) {
      const Measured measured = measure(value, token);
      add(measured.rank, measured.weight);
    });
  });
}

__device__ __forceinline__ Measured count_of(float value) { return {rank_of(value), 1}; }

// The count-th lowest of the tokens whose value is `value`.
__device__ inline int32_t last_of_ties(SelectShared& shared, const Gathered& gathered, float value,
                                       uint64_t count) {
  const SelectRange range = {
      .low = 0, .high = static_cast<uint32_t>(gathered.view->vocab_size - 1), .target = count};
  const Selected last =
      select_gathered(shared, gathered, range, [value](float x, int32_t token) -> Measured {
        return {static_cast<uint32_t>(token), x == value ? 1u : 0u};
      });
  return static_cast<int32_t>(last.rank);
}

// A value that at least `count` tokens reach: the count-th greatest block maximum, or a little
// less. -inf if there are fewer blocks.
__device__ inline float bound_of_top(SelectShared& shared, const float* maxima, int num_blocks,
                                     int count) {
  if (count > num_blocks) return -kInfinity;
  const SelectRange range = {.low = 0,
                             .high = rank_of(-kInfinity),
                             .target = static_cast<uint64_t>(count),
                             .coarse_bits = 12};
  const Selected selected = select(shared, range, [&](const auto& add) {
    for (int i = threadIdx.x; i < num_blocks; i += kSelectThreads) add(rank_of(maxima[i]), 1);
  });
  return value_of(selected.last);
}

// Sorts the `count` greatest gathered tokens, or all if there are fewer, into shared.keys, best
// first. Returns how many.
__device__ inline int sort_top(SelectShared& shared, const Gathered& gathered, int count) {
  Cutoff cutoff = {.value = gathered.threshold};
  if (gathered.count > kMaxListed) {
    const SelectRange range = {
        .low = 0, .high = rank_of(gathered.threshold), .target = static_cast<uint64_t>(count)};
    const Selected selected = select_gathered(shared, gathered, range,
                                              [](float value, int32_t) { return count_of(value); });
    cutoff.value = value_of(selected.rank);
    const uint64_t ties = static_cast<uint64_t>(count) - selected.before;
    if (ties < selected.weight) {
      cutoff.last_token = last_of_ties(shared, gathered, cutoff.value, ties);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.bin = 0;
  __syncthreads();
  gathered.visit([&](float value, int32_t token) {
    if (cutoff.keeps(value, token)) shared.keys[atomicAdd(&shared.bin, 1)] = key_of(value, token);
  });
  __syncthreads();
  const int found = shared.bin;
  const int mine = threadIdx.x;
  uint64_t key = 0;
  int index = 0;
  if (mine < found) {
    key = shared.keys[mine];
    for (int i = 0; i < found; ++i) index += shared.keys[i] < key ? 1 : 0;
  }
  __syncthreads();
  if (mine < found) shared.keys[index] = key;
  __syncthreads();
  return min(found, count);
}

// Puts the `count` (at most kMaxListed) greatest values above -inf into shared.keys, best first,
// and returns how many. No value is above its block's maximum; if tokens are cut off, all may be
// below it.
__device__ inline int list_top(SelectShared& shared, const RowView& view, const float* maxima,
                               int count) {
  const float bound = bound_of_top(shared, maxima, view.num_blocks(), count);
  Gathered gathered = gather(shared, view, maxima, bound, fmaxf(bound, kLowest));
  if (gathered.count < count && bound > -kInfinity) {
    gathered = gather(shared, view, maxima, -kInfinity, kLowest);
  }
  return sort_top(shared, gathered, count);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
