// The sampler in plain double-precision loops: the exact distribution a row's token is drawn from.
// The oracle for the vector kernels, for other devices and for the verification of drafts.
#pragma once

#include <span>
#include <vector>

#include "backend/op_args.h"

namespace specdec::reference {

struct Distribution {
  std::vector<double> raw_logprobs;  // [vocab_size] log-softmax of the logits as given
  std::vector<double> logits;        // [vocab_size] after all processors; -inf: cannot be drawn
  std::vector<double> processed_logprobs;  // [vocab_size] log-softmax of those
  std::vector<double> probs;  // [vocab_size] of the token to be drawn; one-hot if greedy
};

// `logits` [vocab_size]. forced_token is not looked at.
Distribution distribution(std::span<const float> logits, const SampleRow& params);

// Gumbel noise of a token.
double noise(uint64_t seed, int64_t position, int32_t token, uint32_t stream = 0);

// The token the noise of (seed, position, noise_stream) picks, ties by lowest id.
int32_t draw(const Distribution& distribution, const SampleRow& params);

struct Candidate {
  int32_t token_id = -1;
  double probability = 0.0;
};

// SampleResult::candidates of a row.
std::vector<Candidate> candidates(const Distribution& distribution, const SampleRow& params);

}  // namespace specdec::reference
