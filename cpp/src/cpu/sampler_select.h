// Selects from a row without sorting all of it: the tokens that min_p, top_k and top_p keep, and
// the N most likely tokens.
#pragma once

#include "backend/op_args.h"
#include "cpu/kernels/sampling.h"
#include "cpu/sampler.h"

namespace specdec::cpu {

// One row of logits with its block maxima, both as SamplingKernels::block_maxima leaves them.
struct RowView {
  const float* logits = nullptr;     // [vocab_size]
  const float* block_max = nullptr;  // [num_blocks]
  int vocab_size = 0;

  int num_blocks() const { return (vocab_size + kSamplingBlock - 1) / kSamplingBlock; }
};

// The tokens left to draw from: those that `cutoff` lets through. They are also listed in the
// scratch's tokens and values.
struct KeptTokens {
  DrawCutoff cutoff;
  int count = 0;
};

bool truncates(const SampleRow& params, int vocab_size);

// `row` holds the logits after the temperature. Requires truncates(params).
KeptTokens select_kept(const SamplingKernels& kernels, const RowView& row, const SampleRow& params,
                       SamplingScratch& scratch);

// A sort key that rises as the logit falls; equal logits are in order of their tokens.
uint64_t key_of(float logit, int32_t token);
int32_t token_of(uint64_t key);
float logit_of(uint64_t key);

// The `count` greatest logits in the scratch's keys, sorted. Tokens at -inf come last, by id.
void select_top(const SamplingKernels& kernels, const RowView& row, int count,
                SamplingScratch& scratch);

}  // namespace specdec::cpu
