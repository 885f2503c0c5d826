#include "cpu/sampler_select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "core/check.h"

namespace specdec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kAnyIndex = std::numeric_limits<int32_t>::max();

// Up to this many candidates are sorted; a longer list is first narrowed to one bucket.
constexpr int kSortAtOnce = 1024;
constexpr int kNumBuckets = 2048;
constexpr float kBucketsPerNat = 64.0f;

// The least float that is >= x. Comparing floats with it is the same as comparing them with x.
float round_up(double x) {
  const float rounded = static_cast<float>(x);
  return static_cast<double>(rounded) < x ? std::nextafter(rounded, kInfinity) : rounded;
}

// A value that at least `count` tokens reach: the count-th greatest block maximum.
float lower_bound_of_top(const RowView& row, int count, SamplingScratch& scratch) {
  if (count > row.num_blocks()) return -kInfinity;
  auto& order = scratch.block_order;
  const auto end = std::copy_n(row.block_max, row.num_blocks(), order.begin());
  std::nth_element(order.begin(), order.begin() + (count - 1), end, std::greater<>());
  return order[count - 1];
}

int collect(const SamplingKernels& kernels, const RowView& row, float threshold,
            SamplingScratch& scratch) {
  // -inf itself is no candidate.
  threshold = std::max(threshold, std::numeric_limits<float>::lowest());
  return kernels.collect_at_least(row.logits, row.block_max, row.vocab_size, threshold,
                                  scratch.tokens.data(), scratch.values.data());
}

// Drops the listed candidates that the cutoff rejects.
int apply_cutoff(DrawCutoff cutoff, int count, SamplingScratch& scratch) {
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    const float value = scratch.values[i];
    const int32_t token = scratch.tokens[i];
    if (value < cutoff.value || (value == cutoff.value && token > cutoff.last_index)) continue;
    scratch.values[kept] = value;
    scratch.tokens[kept] = token;
    ++kept;
  }
  return kept;
}

float kth_greatest(int k, int count, SamplingScratch& scratch) {
  auto& order = scratch.weights;
  std::copy_n(scratch.values.begin(), count, order.begin());
  std::nth_element(order.begin(), order.begin() + (k - 1), order.begin() + count, std::greater<>());
  return order[k - 1];
}

int bucket_of(float value, float max) {
  const float distance = (max - value) * kBucketsPerNat;
  return distance < kNumBuckets - 1 ? static_cast<int>(distance) : kNumBuckets - 1;
}

// Adds the sorted keys' weights to `mass` until they reach the target. The key that reaches the
// target ends the set; if rounding leaves the sum short, the last key does.
uint64_t key_reaching(const SamplingKernels& kernels, int num_keys, float max, double mass,
                      double target, SamplingScratch& scratch) {
  auto& keys = scratch.keys;
  std::sort(keys.begin(), keys.begin() + num_keys);
  constexpr int kBlock = kSamplingBlock;
  for (int begin = 0; begin < num_keys; begin += kBlock) {
    const int size = std::min(kBlock, num_keys - begin);
    float logits[kBlock], weights[kBlock];
    for (int i = 0; i < size; ++i) logits[i] = logit_of(keys[begin + i]);
    kernels.exp_shifted(logits, max, size, weights);
    for (int i = 0; i < size; ++i) {
      mass += weights[i];
      if (mass >= target) return keys[begin + i];
    }
  }
  return keys[num_keys - 1];
}

// top_p over the listed candidates: returns the last of the most likely ones that together have the
// weight `target`, in units of the maximum's weight.
DrawCutoff top_p_cutoff(const SamplingKernels& kernels, int count, float max, double target,
                        SamplingScratch& scratch) {
  int num_keys = 0;
  double mass = 0.0;
  if (count <= kSortAtOnce) {
    for (int i = 0; i < count; ++i) {
      scratch.keys[num_keys++] = key_of(scratch.values[i], scratch.tokens[i]);
    }
  } else {
    // Finds the bucket of logits in which the target is reached, and sorts only that bucket.
    kernels.exp_shifted(scratch.values.data(), max, count, scratch.weights.data());
    scratch.buckets.assign(kNumBuckets, 0.0);
    int last_used = 0;
    for (int i = 0; i < count; ++i) {
      const int bucket = bucket_of(scratch.values[i], max);
      scratch.buckets[bucket] += scratch.weights[i];
      last_used = std::max(last_used, bucket);
    }
    int chosen = 0;
    while (chosen < last_used && mass + scratch.buckets[chosen] < target) {
      mass += scratch.buckets[chosen++];
    }
    for (int i = 0; i < count; ++i) {
      if (bucket_of(scratch.values[i], max) != chosen) continue;
      scratch.keys[num_keys++] = key_of(scratch.values[i], scratch.tokens[i]);
    }
  }
  const uint64_t last = key_reaching(kernels, num_keys, max, mass, target, scratch);
  return {logit_of(last), token_of(last)};
}

// All tokens further below the maximum than this together have less than 1 - top_p of the weight.
float top_p_reach(int vocab_size, float top_p) {
  constexpr double kSlack = 0.01;
  return static_cast<float>(std::log(vocab_size / (1.0 - static_cast<double>(top_p))) + kSlack);
}

double weight_of_listed(const SamplingKernels& kernels, int count, float max,
                        const SamplingScratch& scratch) {
  const ExpSum sum = kernels.exp_sum(scratch.values.data(), count);
  return sum.sum * std::exp(static_cast<double>(sum.max) - max);
}

}  // namespace

uint64_t key_of(float logit, int32_t token) {
  // Floats sort like their bits once the negative ones are flipped. Adding 0 turns -0 into +0
  // first.
  uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  bits ^= (bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u;
  return static_cast<uint64_t>(~bits) << 32 | static_cast<uint32_t>(token);
}

int32_t token_of(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

float logit_of(uint64_t key) {
  uint32_t bits = ~static_cast<uint32_t>(key >> 32);
  bits ^= (bits >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu;
  return std::bit_cast<float>(bits);
}

bool truncates(const SampleRow& params, int vocab_size) {
  return params.min_p > 0.0f || (params.top_k > 0 && params.top_k < vocab_size) ||
         params.top_p < 1.0f;
}

KeptTokens select_kept(const SamplingKernels& kernels, const RowView& row, const SampleRow& params,
                       SamplingScratch& scratch) {
  SPECDEC_CHECK(truncates(params, row.vocab_size));
  const float max = *std::max_element(row.block_max, row.block_max + row.num_blocks());
  KeptTokens kept = {{-kInfinity, kAnyIndex}, 0};
  if (max == -kInfinity) return kept;

  const bool has_top_k = params.top_k > 0 && params.top_k < row.vocab_size;
  const bool has_top_p = params.top_p < 1.0f;
  const bool has_min_p = params.min_p > 0.0f;
  // The list holds every token that min_p and top_k may keep; without either, every token that
  // top_p may keep.
  float listed_from = -kInfinity;
  if (has_min_p) {
    kept.cutoff.value = round_up(max + std::log(static_cast<double>(params.min_p)));
    listed_from = kept.cutoff.value;
  }
  if (has_top_k) {
    listed_from = std::max(listed_from, lower_bound_of_top(row, params.top_k, scratch));
  }
  const bool lists_all = has_top_k || has_min_p;
  if (!lists_all) listed_from = max - top_p_reach(row.vocab_size, params.top_p);
  kept.count = collect(kernels, row, listed_from, scratch);

  if (has_top_k && params.top_k <= kept.count) {
    kept.cutoff.value = kth_greatest(params.top_k, kept.count, scratch);
    kept.count = apply_cutoff(kept.cutoff, kept.count, scratch);
  }
  if (has_top_p) {
    const double total = lists_all ? weight_of_listed(kernels, kept.count, max, scratch)
                                   : kernels.exp_sum(row.logits, row.vocab_size).sum;
    kept.cutoff = top_p_cutoff(kernels, kept.count, max, params.top_p * total, scratch);
    kept.count = apply_cutoff(kept.cutoff, kept.count, scratch);
  }
  return kept;
}

void select_top(const SamplingKernels& kernels, const RowView& row, int count,
                SamplingScratch& scratch) {
  SPECDEC_CHECK(count >= 0 && count <= row.vocab_size);
  if (count == 0) return;
  const int listed = collect(kernels, row, lower_bound_of_top(row, count, scratch), scratch);
  auto& keys = scratch.keys;
  for (int i = 0; i < listed; ++i) keys[i] = key_of(scratch.values[i], scratch.tokens[i]);
  const int sorted = std::min(count, listed);
  if (sorted < listed / 8) {
    std::partial_sort(keys.begin(), keys.begin() + sorted, keys.begin() + listed);
  } else {
    std::sort(keys.begin(), keys.begin() + listed);
  }
  // `listed` has fewer than `count` tokens only if every token above -inf is listed.
  int filled = sorted;
  for (int token = 0, next = 0; filled < count; ++token) {
    if (next < listed && scratch.tokens[next] == token) {
      ++next;
    } else {
      keys[filled++] = key_of(-kInfinity, token);
    }
  }
}

}  // namespace specdec::cpu
