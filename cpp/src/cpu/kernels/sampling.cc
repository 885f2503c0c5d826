#include "cpu/kernels/sampling.h"

#include "cpu/kernels/math.h"
#include "cpu/kernels/philox_simd.h"
#include "cpu/kernels/simd.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

constexpr int kVectors = kSamplingBlock / kLanes;
// Elements per partial sum; each sum has its own base, and the chunk stays in L1
constexpr int kChunk = 4096;
constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -__FLT_MAX__;
// A bound above every value of the noise, and the least step that covers the rounding of two
// values.
constexpr float kMaxNoise = 22.93f;
constexpr float kNoiseMargin = 1e-4f;

// NaN: -inf; above the limit: the limit. Both operations return their second operand for a NaN.
inline F32x16 clean(F32x16 x) { return max(min(broadcast(kMaxLogit), x), broadcast(-kInfinity)); }

inline float clean(float x) {
  return x > -kInfinity ? (x < kMaxLogit ? x : kMaxLogit) : -kInfinity;
}

struct Block {
  F32x16 v[kVectors];
};

// Elements [begin, begin + 64) of x, cleaned; -inf past the end.
inline Block load_block(const float* x, int begin, int count) {
  const float* p = x + begin;
  float padded[kSamplingBlock];
  if (count - begin < kSamplingBlock) {
    for (int i = 0; i < kSamplingBlock; ++i) padded[i] = begin + i < count ? p[i] : -kInfinity;
    p = padded;
  }
  Block block;
  for (int i = 0; i < kVectors; ++i) block.v[i] = clean(load(p + i * kLanes));
  return block;
}

inline Block load_scaled(const float* x, F32x16 divisor, int begin, int count) {
  Block block = load_block(x, begin, count);
  for (int i = 0; i < kVectors; ++i) block.v[i] = clean(block.v[i] / divisor);
  return block;
}

inline F32x16 lane_maxima(const Block& block) {
  return max(max(block.v[0], block.v[1]), max(block.v[2], block.v[3]));
}

inline void store_block(float* out, const Block& block) {
  for (int i = 0; i < kVectors; ++i) store(out + i * kLanes, block.v[i]);
}

RowMaximum argmax(const float* x, int count) {
  // Finds the best chunk first, then its first maximum: keeping an index per lane would double the
  // work.
  RowMaximum best = {-kInfinity, -1};
  int best_chunk = 0;
  for (int chunk = 0; chunk < count; chunk += kChunk) {
    const int end = count - chunk < kChunk ? count : chunk + kChunk;
    F32x16 maxima = broadcast(-kInfinity);
    for (int i = chunk; i < end; i += kSamplingBlock) {
      maxima = max(maxima, lane_maxima(load_block(x, i, count)));
    }
    const float value = reduce_max(maxima);
    if (value > best.value) {
      best.value = value;
      best_chunk = chunk;
    }
  }
  if (best.value == -kInfinity) return best;
  best.index = best_chunk;
  while (clean(x[best.index]) != best.value) ++best.index;
  return best;
}

void block_maxima(const float* x, float divisor, int count, float* block_max, float* scaled) {
  const F32x16 divisors = broadcast(divisor);
  for (int begin = 0; begin < count; begin += kSamplingBlock) {
    const Block block =
        divisor == 1.0f ? load_block(x, begin, count) : load_scaled(x, divisors, begin, count);
    block_max[begin / kSamplingBlock] = reduce_max(lane_maxima(block));
    if (scaled == nullptr) continue;
    if (count - begin >= kSamplingBlock) {
      store_block(scaled + begin, block);
    } else {
      float padded[kSamplingBlock];
      store_block(padded, block);
      for (int i = begin; i < count; ++i) scaled[i] = padded[i - begin];
    }
  }
}

ExpSum chunk_exp_sum(const float* x, int begin, int end, int count) {
  F32x16 maxima = broadcast(-kInfinity);
  for (int i = begin; i < end; i += kSamplingBlock) {
    maxima = max(maxima, lane_maxima(load_block(x, i, count)));
  }
  const float max = reduce_max(maxima);
  if (max == -kInfinity) return {max, 0.0};
  Block sums = {{zero(), zero(), zero(), zero()}};
  for (int i = begin; i < end; i += kSamplingBlock) {
    const Block block = load_block(x, i, count);
    for (int j = 0; j < kVectors; ++j) {
      sums.v[j] = sums.v[j] + exp(block.v[j] - broadcast(max));
    }
  }
  float partial[kSamplingBlock];
  store_block(partial, sums);
  double sum = 0.0;
  for (int i = 0; i < kSamplingBlock; ++i) sum += partial[i];
  return {max, sum};
}

ExpSum exp_sum(const float* x, int count) {
  ExpSum total = {-kInfinity, 0.0};
  for (int chunk = 0; chunk < count; chunk += kChunk) {
    const int end = count - chunk < kChunk ? count : chunk + kChunk;
    const ExpSum part = chunk_exp_sum(x, chunk, end, count);
    if (part.sum == 0.0) continue;
    // In double, so that the chunks' bases do not affect the result.
    if (part.max > total.max) {
      total.sum *= __builtin_exp(static_cast<double>(total.max) - part.max);
      total.max = part.max;
    }
    total.sum += part.sum * __builtin_exp(static_cast<double>(part.max) - total.max);
  }
  return total;
}

void exp_shifted(const float* x, float shift, int count, float* out) {
  for (int begin = 0; begin < count; begin += kSamplingBlock) {
    Block block = load_block(x, begin, count);
    for (int i = 0; i < kVectors; ++i) {
      block.v[i] = exp(block.v[i] - broadcast(shift));
    }
    float values[kSamplingBlock];
    store_block(values, block);
    const int size = count - begin < kSamplingBlock ? count - begin : kSamplingBlock;
    for (int i = 0; i < size; ++i) out[begin + i] = values[i];
  }
}

int count_at_least(const float* x, int count, float value) {
  int result = 0;
  for (int begin = 0; begin < count; begin += kSamplingBlock) {
    const Block block = load_block(x, begin, count);
    for (int i = 0; i < kVectors; ++i) {
      result += __builtin_popcount(mask_at_least(block.v[i], broadcast(value)));
    }
  }
  return result;
}

int collect_at_least(const float* x, const float* block_max, int count, float threshold,
                     int32_t* indices, float* values) {
  int found = 0;
  for (int begin = 0; begin < count; begin += kSamplingBlock) {
    if (block_max[begin / kSamplingBlock] < threshold) continue;
    const Block block = load_block(x, begin, count);
    for (int i = 0; i < kVectors; ++i) {
      const int first = begin + i * kLanes;
      for (uint32_t mask = mask_at_least(block.v[i], broadcast(threshold)); mask != 0;
           mask &= mask - 1) {
        const int index = first + __builtin_ctz(mask);
        indices[found] = index;
        values[found] = clean(x[index]);
        ++found;
      }
    }
  }
  return found;
}

PhiloxKey key_of(DrawNoise noise) {
  return {static_cast<uint32_t>(noise.seed), static_cast<uint32_t>(noise.seed >> 32)};
}

// The words of tokens [first, first + 64), in order: token t takes word t % 4 of counter t / 4.
// Lane 4 L + k starts with counter 4 k + L, so that transposing the quads puts the words in order.
void words_of_block(int first, DrawNoise noise, U32x16 (&words)[kVectors]) {
  static constexpr uint32_t kCounterOfLane[kLanes] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                      2, 6, 10, 14, 3, 7, 11, 15};
  const uint64_t position = static_cast<uint64_t>(noise.position);
  words[0] = broadcast_u32(static_cast<uint32_t>(position));
  words[1] = broadcast_u32(static_cast<uint32_t>(position >> 32));
  words[2] = load_u32(kCounterOfLane) + broadcast_u32(static_cast<uint32_t>(first) / 4);
  words[3] = broadcast_u32(noise.stream);
  philox4x32_10(words, key_of(noise));
  transpose_quads(words);
}

void clear(RowMaximum* best, int num_best) {
  for (int i = 0; i < num_best; ++i) best[i] = {-kInfinity, -1};
}

// Inserts the entry after all entries that are not less. The last entry must be less; it drops out.
void insert(RowMaximum* best, int num_best, RowMaximum entry) {
  int at = num_best - 1;
  for (; at > 0 && best[at - 1].value < entry.value; --at) best[at] = best[at - 1];
  best[at] = entry;
}

void draw(const float* x, float divisor, int count, DrawCutoff cutoff, DrawNoise noise,
          RowMaximum* best, int num_best) {
  clear(best, num_best);
  const RowMaximum& last = best[num_best - 1];
  const F32x16 divisors = broadcast(divisor);
  // A logit of -inf is never drawn.
  const F32x16 lowest = broadcast(cutoff.value > kLowest ? cutoff.value : kLowest);
  for (int begin = 0; begin < count; begin += kSamplingBlock) {
    const Block block =
        divisor == 1.0f ? load_block(x, begin, count) : load_scaled(x, divisors, begin, count);
    const F32x16 maxima = lane_maxima(block);
    const F32x16 target = broadcast(last.value);
    if (mask_at_least(maxima, lowest) == 0) continue;
    if (mask_at_least(maxima + broadcast(kMaxNoise), target) == 0) continue;
    U32x16 words[kVectors];
    words_of_block(begin, noise, words);
    // A cheap bound before any logarithm: each lane's greatest value with its least word.
    const U32x16 least_words = min(min(words[0], words[1]), min(words[2], words[3]));
    const F32x16 bound = maxima + (gumbel_noise(least_words) + broadcast(kNoiseMargin));
    if (mask_at_least(bound, target) == 0) continue;
    float logits[kSamplingBlock], perturbed[kSamplingBlock];
    store_block(logits, block);
    for (int i = 0; i < kVectors; ++i) {
      const F32x16 value = block.v[i] + gumbel_noise(words[i]);
      store(perturbed + i * kLanes, select_less(block.v[i], lowest, broadcast(-kInfinity), value));
    }
    for (int i = 0; i < kSamplingBlock; ++i) {
      if (!(perturbed[i] > last.value)) continue;
      if (logits[i] == cutoff.value && begin + i > cutoff.last_index) continue;
      insert(best, num_best, {perturbed[i], begin + i});
    }
  }
}

void draw_listed(const int32_t* tokens, const float* x, int count, DrawNoise noise,
                 RowMaximum* best, int num_best) {
  clear(best, num_best);
  const RowMaximum& last = best[num_best - 1];
  const uint64_t position = static_cast<uint64_t>(noise.position);
  for (int begin = 0; begin < count; begin += kLanes) {
    const int size = count - begin < kLanes ? count - begin : kLanes;
    uint32_t counters[kLanes];
    float values[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      counters[i] = i < size ? static_cast<uint32_t>(tokens[begin + i]) / 4 : 0;
      values[i] = i < size ? x[begin + i] : -kInfinity;
    }
    U32x16 words[4] = {broadcast_u32(static_cast<uint32_t>(position)),
                       broadcast_u32(static_cast<uint32_t>(position >> 32)), load_u32(counters),
                       broadcast_u32(noise.stream)};
    philox4x32_10(words, key_of(noise));
    uint32_t all_words[4][kLanes], chosen[kLanes];
    __builtin_memcpy(all_words, words, sizeof(all_words));
    for (int i = 0; i < kLanes; ++i) {
      chosen[i] = i < size ? all_words[static_cast<uint32_t>(tokens[begin + i]) % 4][i] : 0;
    }
    float perturbed[kLanes];
    store(perturbed, clean(load(values)) + gumbel_noise(load_u32(chosen)));
    for (int i = 0; i < size; ++i) {
      if (perturbed[i] > last.value) insert(best, num_best, {perturbed[i], tokens[begin + i]});
    }
  }
}

}  // namespace

SamplingKernels sampling_kernels();
SamplingKernels sampling_kernels() {
  return {.argmax = argmax,
          .block_maxima = block_maxima,
          .exp_sum = exp_sum,
          .exp_shifted = exp_shifted,
          .count_at_least = count_at_least,
          .collect_at_least = collect_at_least,
          .draw = draw,
          .draw_listed = draw_listed};
}

}  // namespace specdec::cpu::SPECDEC_ISA
