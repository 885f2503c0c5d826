// The passes over rows of logits, one block of threads per chunk.
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/sampling_passes.cuh"
#include "cuda/kernels/sampling_row.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kQuads = kSampleChunk / kThreads / 4;  // quads of tokens per thread
constexpr int kBlockLanes = kSampleBlock / 4;        // lanes whose quads make a block

struct ScanWork {
  bool sums;
  bool draws;
  float* block_max;  // [num_blocks]
  float* noisy_max;  // [num_blocks], or null
  ChunkPartial* partial;
};

__device__ __forceinline__ uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Logits first to first + 3, divided by the temperature; -inf past the end.
__device__ __forceinline__ void load_quad(const RowView& view, int first, bool aligned,
                                          float (&values)[4]) {
  if (aligned && first + 4 <= view.vocab_size) {
    const float4 quad = *reinterpret_cast<const float4*>(view.logits + first);
    values[0] = quad.x;
    values[1] = quad.y;
    values[2] = quad.z;
    values[3] = quad.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = first + i < view.vocab_size ? view.logits[first + i] : -kInfinity;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = clean(values[i]);
    if (view.divisor != 1.0f) values[i] = clean(values[i] / view.divisor);
  }
}

// Stores the maximum of the block that the quad at `first` belongs to.
__device__ __forceinline__ void store_block_max(const RowView& view, int first, float maximum,
                                                float* maxima) {
#pragma unroll 1
  for (int delta = kBlockLanes / 2; delta > 0; delta /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, delta));
  }
  if (threadIdx.x % kBlockLanes == 0 && first < view.vocab_size) {
    maxima[first / kSampleBlock] = maximum;
  }
}

__device__ __forceinline__ uint64_t chunk_best(uint64_t key) {
  __shared__ uint64_t warp_best[kWarps];
#pragma unroll 1
  for (int delta = 16; delta > 0; delta /= 2) {
    key = lesser(key, __shfl_xor_sync(0xffffffffu, key, delta));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = key;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) key = lesser(key, warp_best[warp]);
  return key;
}

__device__ __forceinline__ double chunk_sum(double sum) {
  __shared__ double warp_sums[kWarps];
#pragma unroll 1
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0;
  for (int warp = 0; warp < kWarps; ++warp) sum += warp_sums[warp];
  return sum;
}

__device__ __forceinline__ void scan_chunk(const RowView& view, int chunk, const ScanWork& work) {
  const bool aligned = reinterpret_cast<uintptr_t>(view.logits) % sizeof(float4) == 0;
  const int begin = chunk * kSampleChunk + static_cast<int>(threadIdx.x) * 4;
  float values[kQuads][4];
  uint64_t best = worst_key();
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    load_quad(view, begin + i * kThreads * 4, aligned, values[i]);
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int first = begin + i * kThreads * 4;
    float maximum = -kInfinity;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      maximum = fmaxf(maximum, values[i][j]);
      best = lesser(best, key_of(values[i][j], first + j));
    }
    store_block_max(view, first, maximum, work.block_max);
  }
  best = chunk_best(best);
  const float maximum = value_of_key(best);
  double sum = 0.0;
  if (work.sums && maximum > -kInfinity) {
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mine += exp_negative(values[i][j] - maximum);
    }
    sum = chunk_sum(mine);
  }
  uint64_t drawn = worst_key();
  if (work.draws) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int first = begin + i * kThreads * 4;
      const PhiloxWords words = view.noise.words(static_cast<uint32_t>(first) / 4);
      const float noisy[4] = {
          values[i][0] + gumbel_noise(words.w0), values[i][1] + gumbel_noise(words.w1),
          values[i][2] + gumbel_noise(words.w2), values[i][3] + gumbel_noise(words.w3)};
      float noisy_maximum = -kInfinity;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        noisy_maximum = fmaxf(noisy_maximum, noisy[j]);
        drawn = lesser(drawn, key_of(noisy[j], first + j));
      }
      if (work.noisy_max != nullptr) store_block_max(view, first, noisy_maximum, work.noisy_max);
    }
    drawn = chunk_best(drawn);
  }
  if (threadIdx.x == 0) *work.partial = {.max_key = best, .best_key = drawn, .sum = sum};
}

__global__ void __launch_bounds__(kThreads) scan_kernel(SampleRowsParams params) {
  ptx::wait_for_previous();
  const int index = static_cast<int>(blockIdx.y);
  const int chunk = static_cast<int>(blockIdx.x);
  const DeviceSampleRow& row = params.rows[index];
  const RowNeeds needs = needs_of(row, params);
  const SampleWorkspace& workspace = params.workspace;
  const int64_t first_block = static_cast<int64_t>(index) * workspace.num_blocks;
  ChunkPartial* partials =
      workspace.partials + (static_cast<int64_t>(index) * gridDim.x + chunk) * 2;
  if (needs.processes) {
    scan_chunk(processed_view(row, needs, params, index), chunk,
               {.sums = needs.weighs || needs.truncates || needs.shares_scan,
                .draws = needs.draws,
                .block_max = workspace.block_max + first_block,
                .noisy_max = needs.num_candidates > 1 ? workspace.noisy_max + first_block : nullptr,
                .partial = partials});
  }
  if (needs.reports_raw && !needs.shares_scan) {
    scan_chunk(raw_view(params, index), chunk,
               {.sums = true,
                .draws = false,
                .block_max = workspace.raw_max + first_block,
                .noisy_max = nullptr,
                .partial = partials + 1});
  }
  ptx::let_next_start();
}

// A chunk of a row's logits while they are processed.
struct ChunkEdit {
  float* values;  // [kSampleChunk], shared
  int* counts;    // [kSampleChunk], shared
  int begin;      // first token
  int size;

  // Calls `change` with the offset in the chunk of every token of a list that lies in the chunk.
  template <class Change>
  __device__ __forceinline__ void for_tokens(const int32_t* list, DeviceRange range,
                                             const Change& change) const {
    for (int i = range.begin + static_cast<int>(threadIdx.x); i < range.end; i += kThreads) {
      const int offset = list[i] - begin;
      if (offset >= 0 && offset < size) change(offset);
    }
  }
};

__device__ __forceinline__ void mask_chunk(const ChunkEdit& chunk, const DeviceSampleRow& row,
                                           const SampleRowsParams& params, const float* logits) {
  const bool starts_empty = size_of(row.allowed) > 0;
  for (int i = threadIdx.x; i < chunk.size; i += kThreads) {
    chunk.values[i] = starts_empty ? -kInfinity : logits[chunk.begin + i];
  }
  __syncthreads();
  chunk.for_tokens(params.token_lists, row.allowed,
                   [&](int offset) { chunk.values[offset] = logits[chunk.begin + offset]; });
  __syncthreads();
  const auto ban = [&](int offset) { chunk.values[offset] = -kInfinity; };
  for (int i = threadIdx.x; row.allowed_mask != nullptr && i < chunk.size; i += kThreads) {
    if (!mask_allows(row, chunk.begin + i)) ban(i);
  }
  chunk.for_tokens(params.token_lists, row.banned, ban);
  chunk.for_tokens(params.token_lists, row.early_banned, ban);
  __syncthreads();
}

// Entries of one token are added by one thread, in their order.
__device__ __forceinline__ void bias_chunk(const ChunkEdit& chunk, const DeviceSampleRow& row,
                                           const SampleRowsParams& params) {
  for (int i = row.bias.begin; i < row.bias.end; ++i) {
    const DeviceLogitBias entry = params.biases[i];
    const int offset = entry.token_id - chunk.begin;
    if (offset < 0 || offset >= chunk.size) continue;
    if (offset % kThreads == static_cast<int>(threadIdx.x)) chunk.values[offset] += entry.bias;
  }
  __syncthreads();
}

__device__ __forceinline__ float penalized(float logit, const DeviceSampleRow& row,
                                           int output_count) {
  logit = logit > 0.0f ? logit / row.repetition_penalty : product(logit, row.repetition_penalty);
  if (output_count == 0) return logit;
  logit -= product(row.frequency_penalty, static_cast<float>(output_count));
  return logit - row.presence_penalty;
}

__device__ __forceinline__ void penalize_chunk(const ChunkEdit& chunk, const DeviceSampleRow& row,
                                               const SampleRowsParams& params) {
  if (row.count_table == nullptr) {
    for (int i = row.counts.begin + static_cast<int>(threadIdx.x); i < row.counts.end;
         i += kThreads) {
      const DeviceTokenCount entry = params.counts[i];
      const int offset = entry.token_id - chunk.begin;
      if (offset < 0 || offset >= chunk.size) continue;
      chunk.values[offset] = penalized(chunk.values[offset], row, entry.output_count);
    }
    __syncthreads();
    return;
  }
  for (int i = threadIdx.x; i < chunk.size; i += kThreads) {
    chunk.counts[i] = row.count_table[chunk.begin + i];
  }
  __syncthreads();
  chunk.for_tokens(row.path, {0, row.num_path_tokens},
                   [&](int offset) { atomicAdd(&chunk.counts[offset], 2); });
  __syncthreads();
  for (int i = threadIdx.x; i < chunk.size; i += kThreads) {
    const int count = chunk.counts[i];
    if (count != 0) chunk.values[i] = penalized(chunk.values[i], row, count / 2);
  }
  __syncthreads();
}

struct EditShared {
  float values[kSampleChunk];
  int counts[kSampleChunk];
};

__global__ void __launch_bounds__(kThreads) edit_kernel(SampleRowsParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  EditShared& shared = *reinterpret_cast<EditShared*>(shared_bytes);
  ptx::wait_for_previous();
  const int64_t index = blockIdx.y;
  const DeviceSampleRow& row = params.rows[index];
  if (is_edited(row)) {
    const int begin = static_cast<int>(blockIdx.x) * kSampleChunk;
    const ChunkEdit chunk = {.values = shared.values,
                             .counts = shared.counts,
                             .begin = begin,
                             .size = min(kSampleChunk, params.vocab_size - begin)};
    mask_chunk(
        chunk, row, params,
        row.given_logits != nullptr ? row.given_logits : params.logits + index * params.vocab_size);
    bias_chunk(chunk, row, params);
    penalize_chunk(chunk, row, params);
    float* out = params.processed + index * params.vocab_size + begin;
    for (int i = threadIdx.x; i < chunk.size; i += kThreads) out[i] = shared.values[i];
  }
  ptx::let_next_start();
}

__global__ void __launch_bounds__(kThreads) vectors_kernel(SampleRowsParams params) {
  ptx::wait_for_previous();
  const int index = static_cast<int>(blockIdx.y);
  const DeviceSampleRow& row = params.rows[index];
  if (row.distribution != nullptr || row.reported_logits != nullptr) {
    const SampleState state = params.workspace.states[index];
    const RowNeeds needs = needs_of(row, params);
    RowView view = processed_view(row, needs, params, index);
    view.cutoff = {state.cutoff_value, state.cutoff_last};
    const RowView reported = needs.reports_raw ? raw_view(params, index) : view;
    const int begin = static_cast<int>(blockIdx.x) * kSampleChunk;
    const int end = min(begin + kSampleChunk, params.vocab_size);
    for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kThreads) {
      if (row.distribution != nullptr) {
        row.distribution[token] =
            state.scale == 0.0
                ? (token == state.only_token ? 1.0f : 0.0f)
                : static_cast<float>(exp_negative(view.logit(token) - state.max) * state.scale);
      }
      if (row.reported_logits != nullptr) row.reported_logits[token] = reported.logit(token);
    }
  }
  ptx::let_next_start();
}

// Calls visit(i) for the elements of the block's chunk of a row of `size` elements.
template <class Visit>
__device__ __forceinline__ void visit_chunk(int size, const Visit& visit) {
  const int begin = static_cast<int>(blockIdx.x) * kSampleChunk;
  const int end = min(begin + kSampleChunk, size);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) visit(i);
}

__global__ void __launch_bounds__(kThreads) spread_none_kernel(SpreadParams params) {
  ptx::wait_for_previous();
  float* out = params.out + static_cast<int64_t>(blockIdx.y) * params.target_vocab_size;
  visit_chunk(params.target_vocab_size, [&](int token) { out[token] = -kInfinity; });
  ptx::let_next_start();
}

__global__ void __launch_bounds__(kThreads) spread_kernel(SpreadParams params) {
  ptx::wait_for_previous();
  const float* logits = params.logits + static_cast<int64_t>(blockIdx.y) * params.vocab_size;
  float* out = params.out + static_cast<int64_t>(blockIdx.y) * params.target_vocab_size;
  visit_chunk(params.vocab_size, [&](int i) { out[params.token_ids[i]] = logits[i]; });
  ptx::let_next_start();
}

LaunchConfig chunk_config(int vocab_size, int num_rows) {
  return {.grid = {static_cast<unsigned>(num_sample_chunks(vocab_size)),
                   static_cast<unsigned>(num_rows)},
          .block = {kThreads},
          .overlaps_previous = true};
}
LaunchConfig chunk_config(const SampleRowsParams& params) {
  return chunk_config(params.vocab_size, params.num_rows);
}

void spread(Stream& stream, const SpreadParams& params) {
  launch("sample_spread_none", stream, spread_none_kernel,
         chunk_config(params.target_vocab_size, params.num_rows), params);
  launch("sample_spread", stream, spread_kernel, chunk_config(params.vocab_size, params.num_rows),
         params);
}

void sample(Stream& stream, const SampleRowsParams& params) {
  if (params.num_rows == 0) return;
  if (params.any_edits) edit_rows(stream, params);
  scan_rows(stream, params);
  finish_rows(stream, params);
  if (params.any_vectors) write_vectors(stream, params);
}

}  // namespace

void edit_rows(Stream& stream, const SampleRowsParams& params) {
  LaunchConfig config = chunk_config(params);
  config.shared_bytes = sizeof(EditShared);
  launch("sample_edit", stream, edit_kernel, config, params);
}

void scan_rows(Stream& stream, const SampleRowsParams& params) {
  launch("sample_scan", stream, scan_kernel, chunk_config(params), params);
}

void write_vectors(Stream& stream, const SampleRowsParams& params) {
  launch("sample_vectors", stream, vectors_kernel, chunk_config(params), params);
}

SamplingKernels sampling_kernels() { return {.spread = spread, .sample = sample}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
