// Draws a token from each row of logits, by the rules of SampleRow in vLLM's order, with Gumbel
// noise that depends on the request's seed, the position and the token alone.
//
//   bans -> logit_bias -> penalties -> (greedy: argmax) -> temperature -> min_p -> top_k -> top_p
//   -> draw
//
// Candidates are the greatest perturbed logits, as the draw perturbs them. Their probabilities and
// the distribution are exp(logit - max) / sum, the sum in the fixed order of ExpSum.
//
// A NaN logit counts as -inf, and +inf as 1e30. When no token can be drawn, the result is the
// lowest token that the masks permit: the lowest allowed one where the bans take them all, token 0
// without an allowed set. Its log-probability is -inf, and it is the only candidate, with
// probability 1.
#pragma once

#include <span>
#include <vector>

#include "backend/op_args.h"
#include "core/step_rules.h"
#include "core/thread_pool.h"
#include "cpu/kernels/sampling.h"

namespace specdec::cpu {

// Buffers of one thread. They grow to the largest vocabulary so far and never shrink.
struct SamplingScratch {
  std::vector<float> row;          // [vocab_size] logits being processed
  std::vector<float> block_max;    // [num_blocks]
  std::vector<float> block_order;  // [num_blocks] for selecting among the maxima
  std::vector<int32_t> tokens;     // [vocab_size] candidates, rising
  std::vector<float> values;       // [vocab_size] their logits
  std::vector<float> weights;      // [vocab_size]
  std::vector<uint64_t> keys;      // [vocab_size] for sorting
  std::vector<float> spread;       // [target_vocab_size] of a head that scores some tokens
  std::vector<double> buckets;
  std::vector<RowMaximum> drawn;  // [number of candidates asked for]

  void reserve(int vocab_size);
};

class Sampler {
 public:
  // Both are borrowed and must outlive the sampler.
  Sampler(const SamplingKernels& kernels, ThreadPool& pool);

  void sample(const SampleArgs& args);

 private:
  // `raw` is overwritten.
  void sample_row(const SampleArgs& args, int row, float* raw, int vocab_size,
                  SamplingScratch& scratch) const;
  // Scatters a row's logits over the target's vocabulary, for an LM head that scores only part of
  // it.
  static float* spread(const SampleArgs& args, const float* logits, SamplingScratch& scratch);

  const SamplingKernels& kernels_;
  ThreadPool& pool_;
  std::vector<SamplingScratch> scratch_;  // [num_threads]
};

}  // namespace specdec::cpu
