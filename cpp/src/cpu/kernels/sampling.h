// Kernels over one row of logits. Plain aggregates only: see kernel_table.h.
//
// Every kernel reads a NaN as -inf, and values above kMaxLogit, +inf included, as kMaxLogit.
#pragma once

#include <cstdint>

namespace specdec::cpu {

// Tokens per maximum of block_maxima.
inline constexpr int kSamplingBlock = 64;

// Far above any real logit, and finite, so that the difference of two logits is finite, too.
inline constexpr float kMaxLogit = 1e30f;

// The maximum of a row and the lowest index that has it. Index -1 (value -inf): every element is
// -inf.
struct RowMaximum {
  float value;
  int32_t index;
};

// The sum of exp(x - max) in a fixed order: chunks of 4096 elements, each of 64 interleaved sums.
struct ExpSum {
  float max;  // -inf (and sum 0) when there is no element above -inf
  double sum;
};

// A draw may choose values above `value`, and values equal to it up to index `last_index`.
struct DrawCutoff {
  float value;
  int32_t last_index;
};

// Token t's noise is made from word t % 4 of Philox at counter (position, t / 4, stream), key seed.
struct DrawNoise {
  uint64_t seed;
  int64_t position;
  uint32_t stream;
};

struct SamplingKernels {
  RowMaximum (*argmax)(const float* x, int count);
  // block_max[i] = maximum of x[64 i, 64 i + 64); scaled = x / divisor unless null (may be x). The
  // maxima are those of the quotients.
  void (*block_maxima)(const float* x, float divisor, int count, float* block_max, float* scaled);
  ExpSum (*exp_sum)(const float* x, int count);
  // out[i] = exp(x[i] - shift), for x[i] <= shift; the same values exp_sum adds up.
  void (*exp_shifted)(const float* x, float shift, int count, float* out);
  // Number of elements >= value (> -inf).
  int (*count_at_least)(const float* x, int count, float value);
  // Indices (rising) and values of the elements >= threshold (> -inf); returns how many. The
  // outputs have room for `count`; block_max as block_maxima(x) gives it.
  int (*collect_at_least)(const float* x, const float* block_max, int count, float threshold,
                          int32_t* indices, float* values);
  // best[0, num_best) = the greatest x[i] / divisor + noise(i) over the elements that the cutoff
  // keeps, greatest first; index -1 for missing entries.
  void (*draw)(const float* x, float divisor, int count, DrawCutoff cutoff, DrawNoise noise,
               RowMaximum* best, int num_best);
  // The same over a list of tokens in rising order; a token's noise is that of `draw`, bit for bit.
  void (*draw_listed)(const int32_t* tokens, const float* x, int count, DrawNoise noise,
                      RowMaximum* best, int num_best);
};

}  // namespace specdec::cpu
