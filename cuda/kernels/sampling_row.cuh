// A row of logits as the sampler sees it, and the work that the kernels have with it.
#pragma once

#include "core/step_rules.h"
#include "cuda/common/exact_math.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/sampling.h"
#include "cuda/kernels/token_keys.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

struct Cutoff {
  float value = -kInfinity;
  int32_t last_token = kAnyToken;

  __device__ __forceinline__ bool keeps(float x, int32_t token) const {
    return x > value || (x == value && token <= last_token);
  }
};

// The values of a row's tokens: the logit divided by the temperature, -inf if the token is cut off,
// and with noise for a draw.
struct RowView {
  const float* logits;  // [vocab_size]
  int vocab_size;
  float divisor = 1.0f;
  Cutoff cutoff = {};
  bool noisy = false;
  NoiseSource noise = {};

  __device__ __forceinline__ int num_blocks() const {
    return (vocab_size + kSampleBlock - 1) / kSampleBlock;
  }
  __device__ __forceinline__ float logit(int32_t token) const {
    float x = clean(logits[token]);
    if (divisor != 1.0f) x = clean(x / divisor);
    return cutoff.keeps(x, token) ? x : -kInfinity;
  }
  __device__ __forceinline__ float value(int32_t token) const {
    const float x = logit(token);
    return noisy && x > -kInfinity ? x + gumbel_noise(noise.word(token)) : x;
  }
};

__device__ __forceinline__ int size_of(DeviceRange range) { return range.end - range.begin; }

__device__ __forceinline__ bool is_edited(const DeviceSampleRow& row) {
  return size_of(row.counts) > 0 || size_of(row.bias) > 0 || size_of(row.allowed) > 0 ||
         size_of(row.banned) > 0 || size_of(row.early_banned) > 0 || row.count_table != nullptr ||
         row.given_logits != nullptr || row.allowed_mask != nullptr;
}

__device__ __forceinline__ bool mask_allows(const DeviceSampleRow& row, int32_t token) {
  if (row.allowed_mask == nullptr) return true;
  return token / 32 < row.num_mask_words &&
         (row.allowed_mask[token / 32] >> (token % 32) & 1u) != 0;
}

// The work that the kernels have with a row.
struct RowNeeds {
  bool processes;  // looks at the logits after masks, bias and penalties
  bool greedy;
  bool forced;
  bool truncates;
  bool weighs;  // the softmax of the processed logits is needed
  bool draws;   // draws in the scan: all tokens may be drawn
  bool reports_raw;
  bool shares_scan;  // the raw logits are the processed ones
  int num_candidates;
  float divisor;
  bool has_top_k;
};

__device__ __forceinline__ RowNeeds needs_of(const DeviceSampleRow& row,
                                             const SampleRowsParams& params) {
  RowNeeds needs;
  const bool wants_logprobs = row.want_logprobs != 0;
  needs.forced = row.forced_token >= 0;
  needs.greedy = is_greedy(row.temperature);
  needs.num_candidates = needs.forced ? 0 : min(row.num_candidates, params.vocab_size);
  needs.reports_raw = wants_logprobs && params.raw_logprobs;
  const bool reports_processed = wants_logprobs && !params.raw_logprobs;
  needs.weighs = reports_processed || needs.num_candidates > 0 || row.distribution != nullptr;
  needs.processes = !needs.forced || needs.weighs;
  needs.has_top_k = row.top_k > 0 && row.top_k < params.vocab_size;
  needs.truncates =
      needs.processes && !needs.greedy && (row.min_p > 0.0f || needs.has_top_k || row.top_p < 1.0f);
  needs.draws = !needs.forced && !needs.greedy && !needs.truncates;
  needs.divisor = needs.greedy ? 1.0f : row.temperature;
  needs.shares_scan = needs.reports_raw && needs.processes && needs.divisor == 1.0f &&
                      !(params.any_edits && is_edited(row));
  return needs;
}

__device__ __forceinline__ const float* processed_logits(const DeviceSampleRow& row,
                                                         const SampleRowsParams& params,
                                                         int index) {
  const float* base = params.any_edits && is_edited(row) ? params.processed : params.logits;
  return base + static_cast<int64_t>(index) * params.vocab_size;
}

__device__ __forceinline__ RowView processed_view(const DeviceSampleRow& row, const RowNeeds& needs,
                                                  const SampleRowsParams& params, int index) {
  return {.logits = processed_logits(row, params, index),
          .vocab_size = params.vocab_size,
          .divisor = needs.divisor,
          .noise = {row.seed, row.position, row.noise_stream}};
}

__device__ __forceinline__ RowView raw_view(const SampleRowsParams& params, int index) {
  return {.logits = params.logits + static_cast<int64_t>(index) * params.vocab_size,
          .vocab_size = params.vocab_size};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
