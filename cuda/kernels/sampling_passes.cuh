// The passes of SamplingKernels::sample, in order; each runs where the rows need it.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda::SPECDEC_TARGET {

// Masks, bias and penalties, into params.processed.
void edit_rows(Stream& stream, const SampleRowsParams& params);
// One read of the logits: maxima, sums, and the draws of rows that keep all tokens.
void scan_rows(Stream& stream, const SampleRowsParams& params);
// Truncation, tokens, candidates, logprobs: a block of threads per row.
void finish_rows(Stream& stream, const SampleRowsParams& params);
// Distributions and reported logits.
void write_vectors(Stream& stream, const SampleRowsParams& params);

}  // namespace specdec::cuda::SPECDEC_TARGET
