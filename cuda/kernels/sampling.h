// From logits to tokens on the device: the sampler of cpu/sampler.h, with the same noise.
//
// A row of logits is cut into chunks of kSampleChunk tokens, one block of threads each, and into
// blocks of kSampleBlock tokens whose maxima are kept: later searches (the N greatest logits, the
// cut-off of top_k and top_p, a token's rank) read only blocks whose maximum may matter. Sums and
// sets do not depend on the order of threads: they are made in an order given by the vocabulary, or
// of integers.
//
// Plain version: reference::distribution and draw (tests/testing/oracle/sampler.cc), which the
// CPU's sampler is compared with. Sampling (tests/cuda/backend/sampling_test.cc) compares the
// device with the CPU's sampler, and Draws.FollowTheDistribution the draws with
// reference::distribution.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kSampleChunk = 4096;
inline constexpr int kSampleBlock = 64;
// Most candidates or top-N entries that the device sorts; the host finishes longer reports.
inline constexpr int kMaxListed = 512;

// [begin, end) of one of the arrays of SampleRowsParams.
struct DeviceRange {
  int32_t begin = 0;
  int32_t end = 0;
};

struct DeviceTokenCount {
  int32_t token_id;
  int32_t output_count;  // 0: only in the prompt
};

struct DeviceLogitBias {
  int32_t token_id;
  float bias;
};

// A SampleRow as kernels read it.
struct DeviceSampleRow {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t top_k = 0;
  uint32_t noise_stream = 0;
  uint64_t seed = 0;
  int64_t position = 0;
  int32_t num_candidates = 0;
  int32_t num_logprobs = 0;  // negative, or above kMaxListed: only the chosen is reported
  int32_t want_logprobs = 0;
  int32_t forced_token = -1;
  DeviceRange counts;        // range of counts; tokens are distinct
  DeviceRange bias;          // range of biases; entries of one token add up
  DeviceRange allowed;       // range of token_lists, rising; empty: all
  DeviceRange banned;        // range of token_lists
  DeviceRange early_banned;  // range of token_lists: stop tokens before min_tokens
  // Bits of allowed tokens, [num_mask_words], or null: all. Tokens past the bits are forbidden.
  const uint32_t* allowed_mask = nullptr;
  int32_t num_mask_words = 0;
  // Instead of `counts`, or null: [vocab_size] 2 * (times in the output) + (1 if in the prompt).
  // The tokens of `path` are counted on top, as output.
  const int32_t* count_table = nullptr;
  const int32_t* path = nullptr;  // [num_path_tokens]
  int32_t num_path_tokens = 0;
  // [vocab_size] or null: processed instead of the row's logits.
  const float* given_logits = nullptr;
  float* distribution = nullptr;  // out [vocab_size], or null
  // Out [vocab_size] or null: the logits that logprobs are made of, in processed mode after the
  // row's processors; -inf: cut off.
  float* reported_logits = nullptr;
};

struct DeviceCandidate {
  int32_t token_id;
  float probability;
};

struct DeviceLogprob {
  int32_t token_id;
  float logprob;
  int32_t rank;
};

// The results of a scan of a chunk; keys as in token_keys.cuh.
struct ChunkPartial {
  uint64_t max_key;   // greatest value, and its lowest token
  uint64_t best_key;  // greatest perturbed value
  double sum;         // of exp(value - greatest value)
};

// Results of finish_rows, for the kernels after it and for the host.
struct SampleState {
  double scale;      // exp(value - max) * scale is the probability; 0: all of it at `only_token`
  double log_total;  // logprob = reported logit - log_total; 0 where logits are reported
  float max;
  float cutoff_value;  // kept: values above it, and those equal to it up to token cutoff_last
  int32_t cutoff_last;
  int32_t only_token;
};

struct SampleWorkspace {
  float* block_max;        // [num_rows, num_blocks] of logits / temperature
  float* noisy_max;        // [num_rows, num_blocks] of perturbed logits
  float* raw_max;          // [num_rows, num_blocks] of the logits as given
  ChunkPartial* partials;  // [num_rows, num_chunks, 2]: processed, raw
  SampleState* states;     // [num_rows]
  int num_blocks;
  int num_chunks;
};

inline int num_sample_blocks(int vocab_size) {
  return (vocab_size + kSampleBlock - 1) / kSampleBlock;
}
inline int num_sample_chunks(int vocab_size) {
  return (vocab_size + kSampleChunk - 1) / kSampleChunk;
}

inline size_t sample_workspace_bytes(int num_rows, int vocab_size) {
  return static_cast<size_t>(num_rows) *
         (3 * sizeof(float) * num_sample_blocks(vocab_size) +
          2 * sizeof(ChunkPartial) * num_sample_chunks(vocab_size) + sizeof(SampleState));
}

// Lays a workspace out in sample_workspace_bytes at `memory`, which is aligned to 8.
inline SampleWorkspace sample_workspace_at(void* memory, int num_rows, int vocab_size) {
  const size_t rows = static_cast<size_t>(num_rows);
  const size_t maxima = rows * num_sample_blocks(vocab_size);
  SampleWorkspace workspace;
  workspace.partials = static_cast<ChunkPartial*>(memory);
  workspace.states =
      reinterpret_cast<SampleState*>(workspace.partials + rows * 2 * num_sample_chunks(vocab_size));
  workspace.block_max = reinterpret_cast<float*>(workspace.states + rows);
  workspace.noisy_max = workspace.block_max + maxima;
  workspace.raw_max = workspace.noisy_max + maxima;
  workspace.num_blocks = num_sample_blocks(vocab_size);
  workspace.num_chunks = num_sample_chunks(vocab_size);
  return workspace;
}

struct SampleOutputs {
  int32_t* token_ids;           // [num_rows]
  int32_t* num_candidates;      // [num_rows], or null without candidates
  DeviceCandidate* candidates;  // [num_rows, max_candidates]
  int max_candidates;           // at least what any row asks for, at most kMaxListed
  int32_t* num_logprobs;        // [num_rows], or null without logprobs
  DeviceLogprob* logprobs;      // [num_rows, max_logprobs + 1], the chosen one first
  int max_logprobs;             // at least what any row asks for (up to kMaxListed)
};

struct SampleRowsParams {
  const DeviceSampleRow* rows;  // [num_rows]
  float* logits;                // [num_rows, vocab_size]
  // Like logits: the output of masks, bias, penalties and given logits. The same memory as
  // `logits`, unless raw logprobs of such a row are wanted.
  float* processed;
  // The arrays that the rows' ranges refer to.
  const int32_t* token_lists;
  const DeviceTokenCount* counts;
  const DeviceLogitBias* biases;
  SampleWorkspace workspace;
  SampleOutputs outputs;
  int num_rows;
  int vocab_size;
  bool raw_logprobs;  // is_raw(LogprobsMode)
  bool logprobs_hold_logits;
  bool any_edits;    // some row may have masks, bias, penalties or given logits
  bool any_vectors;  // some row may have a distribution or reported_logits
};

// Spreads the logits of an LM head that scores some tokens over the target's vocabulary: see
// SampleArgs::token_ids.
struct SpreadParams {
  const float* logits;       // [num_rows, vocab_size]
  const int32_t* token_ids;  // [vocab_size]
  float* out;                // [num_rows, target_vocab_size]
  int num_rows;
  int vocab_size;
  int target_vocab_size;
};

struct SamplingKernels {
  void (*spread)(Stream&, const SpreadParams&);
  void (*sample)(Stream&, const SampleRowsParams&);
};

namespace native {
SamplingKernels sampling_kernels();
}
namespace emulated {
SamplingKernels sampling_kernels();
}

}  // namespace specdec::cuda
