#include <cstdint>
#include <type_traits>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/pointwise.h"
#include "cuda/kernels/quantize_layout.cuh"
#include "cuda/kernels/tiles.cuh"
#include "cuda/kernels/token_keys.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kNormThreads = 256;
constexpr int kEmbedThreads = 128;

// The sum of the block's values, for every thread; always added in the same order.
__device__ float block_sum(float value, float* partial) {
  value = warp_sum(value);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = partial[0];
  for (int warp = 1; warp < kNormThreads / 32; ++warp) total += partial[warp];
  return total;
}

// Sum of term(x[i]). A thread adds the same elements however they are loaded.
template <class Term>
__device__ float row_sum(const float* x, int dim, bool is_aligned, float* partial, Term&& term) {
  float total = 0.0f;
  for (int i = 4 * threadIdx.x; i < dim; i += 4 * kNormThreads) {
    if (is_aligned) {
      const float4 quad = *reinterpret_cast<const float4*>(x + i);
      total += term(quad.x);
      total += term(quad.y);
      total += term(quad.z);
      total += term(quad.w);
    } else {
      for (int j = i; j < i + 4 && j < dim; ++j) total += term(x[j]);
    }
  }
  return block_sum(total, partial);
}

__device__ __forceinline__ bool is_aligned_row(const float* row, int dim) {
  return dim % 4 == 0 && reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

template <class T, bool kActivates>
__global__ void norm_kernel(NormRowsParams params) {
  __shared__ float partial[kNormThreads / 32];
  ptx::wait_for_previous();
  const int64_t out_row = params.slot_mapping != nullptr ? params.slot_mapping[blockIdx.x]
                                                         : static_cast<int64_t>(blockIdx.x);
  if (out_row < 0) return;
  const int dim = params.dim;
  const float* x = params.x + static_cast<int64_t>(blockIdx.x) * dim;
  T* out = static_cast<T*>(params.out) + out_row * params.out_stride;
  const bool is_aligned = is_aligned_row(x, dim);
  float mean = 0.0f;
  if (params.is_layer) {
    mean = row_sum(x, dim, is_aligned, partial, [](float value) { return value; }) / dim;
  }
  const float squares = row_sum(x, dim, is_aligned, partial,
                                [mean](float value) { return (value - mean) * (value - mean); });
  const float scale = 1.0f / sqrtf(squares / dim + params.eps);
  ptx::let_next_start();
  for (int i = threadIdx.x; i < dim; i += kNormThreads) {
    const float bias = params.bias != nullptr ? params.bias[i] : 0.0f;
    float value = (x[i] - mean) * scale * params.weight[i] + bias;
    if constexpr (kActivates) value = activate(params.activation, value);
    if constexpr (std::is_same_v<T, float>) {
      out[i] = params.accumulate ? params.scale * (out[i] + value) : value;
    } else {
      out[i] = from_float<T>(value);
    }
  }
}

template <class T, bool kActivates>
void launch_norm(Stream& stream, const NormRowsParams& params) {
  launch("norm", stream, norm_kernel<T, kActivates>,
         {.grid = {static_cast<unsigned>(params.num_rows)},
          .block = {kNormThreads},
          .overlaps_previous = true},
         params);
}

template <class T>
void norm_to(Stream& stream, const NormRowsParams& params) {
  if (params.activation != Activation::kIdentity) return launch_norm<T, true>(stream, params);
  launch_norm<T, false>(stream, params);
}

void norm(Stream& stream, const NormRowsParams& params) {
  if (params.out_dtype == DType::kBF16) return norm_to<Bf16>(stream, params);
  if (params.out_dtype == DType::kF16) return norm_to<Half>(stream, params);
  norm_to<float>(stream, params);
}

// --- Lookups ---

// Rows of packed matrices: pair(id, k) gives the elements k and k + 1 of row `id`, k even.
template <class T>
struct ActRows {
  const unsigned char* weights;
  int num_k_blocks;

  __device__ float2 pair(int64_t id, int k) const {
    const int64_t offset = act_pair_offset(id, k, num_k_blocks);
    return unpack<T>(*reinterpret_cast<const uint32_t*>(weights + offset));
  }
};

struct CodeRows {
  const unsigned char* weights;
  CodeLayout layout;

  __device__ float2 pair(int64_t id, int k) const {
    const TileRow tile_row = tile_row_at(id);
    const float2 scale = scale_and_min(weights, layout, tile_row, k);
    return make_float2(weight_of(scale, code_of(weights, layout, tile_row, k)),
                       weight_of(scale, code_of(weights, layout, tile_row, k + 1)));
  }
};

template <class Rows>
__global__ void embed_kernel(Rows rows, EmbedRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int k = 2 * (blockIdx.y * kEmbedThreads + threadIdx.x);
  if (k >= params.dim) return;
  int64_t id = int64_t{params.token_ids[blockIdx.x]} + params.index_offset;
  if (params.unknown_is_first && id >= params.num_embeddings) id = 0;
  const bool is_known = id >= 0 && id < params.num_embeddings;
  const float none = __uint_as_float(0x7fc00000u);
  float2 values = is_known ? rows.pair(id, k) : make_float2(none, none);
  values = make_float2(product(values.x, params.scale), product(values.y, params.scale));
  float* out = params.out + static_cast<int64_t>(blockIdx.x) * params.dim + k;
  out[0] = params.accumulate ? out[0] + values.x : values.x;
  if (k + 1 < params.dim) out[1] = params.accumulate ? out[1] + values.y : values.y;
}

template <class Rows>
void launch_embed(Stream& stream, const Rows& rows, const EmbedRowsParams& params) {
  const int pairs = (params.dim + 1) / 2;
  launch("embed", stream, embed_kernel<Rows>,
         {.grid = {static_cast<unsigned>(params.num_rows),
                   static_cast<unsigned>((pairs + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true},
         rows, params);
}

void embed_act(Stream& stream, const EmbedRowsParams& params, DType act_dtype) {
  const auto* weights = static_cast<const unsigned char*>(params.table);
  const int num_k_blocks = (params.dim + kBlockInputs - 1) / kBlockInputs;
  if (act_dtype == DType::kBF16) {
    return launch_embed(stream, ActRows<Bf16>{weights, num_k_blocks}, params);
  }
  launch_embed(stream, ActRows<Half>{weights, num_k_blocks}, params);
}

void embed_codes(Stream& stream, const EmbedRowsParams& params, const CodeLayout& layout) {
  const auto* weights = static_cast<const unsigned char*>(params.table);
  launch_embed(stream, CodeRows{weights, layout}, params);
}

// --- Products of rows with factors ---

template <class T>
__global__ void scale_rows_kernel(ScaleRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= params.dim) return;
  T* value = static_cast<T*>(params.rows) + int64_t{blockIdx.x} * params.dim + i;
  const bool gated = params.gates != nullptr;
  float factor =
      gated ? params.gates[blockIdx.x] : params.factors[blockIdx.x * params.factor_stride + i];
  if (gated || params.factors_are_gates) factor = 1.0f / (1.0f + expf(-factor));
  *value = from_float<T>(to_float(*value) * factor);
}

template <class T>
void launch_scale_rows(Stream& stream, const ScaleRowsParams& params) {
  launch("scale_rows", stream, scale_rows_kernel<T>,
         {.grid = {static_cast<unsigned>(params.num_rows),
                   static_cast<unsigned>((params.dim + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true},
         params);
}

void scale_rows(Stream& stream, const ScaleRowsParams& params) {
  if (params.act_dtype == DType::kBF16) return launch_scale_rows<Bf16>(stream, params);
  launch_scale_rows<Half>(stream, params);
}

// --- Statistics of rows: a block per row ---

__global__ void sparse_gates_kernel(SparseGatesArgs params) {
  __shared__ float partial[kNormThreads / 32];
  ptx::wait_for_previous();
  const int dim = params.dim;
  float* gates = params.gates + static_cast<int64_t>(blockIdx.x) * dim;
  const bool is_aligned = is_aligned_row(gates, dim);
  const float mean =
      row_sum(gates, dim, is_aligned, partial, [](float value) { return value; }) / dim;
  const float squares = row_sum(gates, dim, is_aligned, partial,
                                [mean](float value) { return (value - mean) * (value - mean); });
  const float threshold = fmaf(params.deviations, sqrtf(squares / dim), mean);
  ptx::let_next_start();
  for (int i = threadIdx.x; i < dim; i += kNormThreads) {
    gates[i] = activate(params.activation, fmaxf(gates[i] - threshold, 0.0f));
  }
}

void sparse_gates(Stream& stream, const SparseGatesArgs& params) {
  launch("sparse_gates", stream, sparse_gates_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows)},
          .block = {kNormThreads},
          .overlaps_previous = true},
         params);
}

// A binary search for the rank of the last run that is kept, bit by bit; of runs with that rank the
// first ones are.
__global__ void keep_clusters_kernel(KeepClustersParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  uint32_t* ranks = reinterpret_cast<uint32_t*>(shared_bytes);  // [num_clusters]
  __shared__ float partial[kNormThreads / 32];
  ptx::wait_for_previous();
  const int num_clusters = params.num_clusters;
  const int64_t row = blockIdx.x;
  const float* scores = params.scores + row * num_clusters;
  for (int i = threadIdx.x; i < num_clusters; i += kNormThreads)
    ranks[i] = rank_of(clean(scores[i]));
  __syncthreads();
  ptx::let_next_start();
  const auto num_below = [&](uint32_t limit) {
    int count = 0;
    for (int i = threadIdx.x; i < num_clusters; i += kNormThreads)
      count += ranks[i] < limit ? 1 : 0;
    return block_sum(static_cast<float>(count), partial);
  };
  uint32_t last = 0;  // the greatest rank with fewer than num_kept runs below it
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (num_below(last | bit) < static_cast<float>(params.num_kept)) last |= bit;
  }
  const int num_equal = params.num_kept - static_cast<int>(num_below(last));
  float* logits = params.logits + row * num_clusters * params.cluster_size;
  for (int cluster = threadIdx.x / 32; cluster < num_clusters; cluster += kNormThreads / 32) {
    if (ranks[cluster] < last) continue;
    if (ranks[cluster] == last) {
      int order = 0;
      for (int i = 0; i < cluster; ++i) order += ranks[i] == last ? 1 : 0;
      if (order < num_equal) continue;
    }
    float* out = logits + static_cast<int64_t>(cluster) * params.cluster_size;
    for (int i = threadIdx.x % 32; i < params.cluster_size; i += 32) out[i] = -kInfinity;
  }
}

void keep_clusters(Stream& stream, const KeepClustersParams& params) {
  launch("keep_clusters", stream, keep_clusters_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows)},
          .block = {kNormThreads},
          .shared_bytes = sizeof(uint32_t) * static_cast<size_t>(params.num_clusters),
          .overlaps_previous = true},
         params);
}

__global__ void match_magnitude_kernel(MatchMagnitudeArgs params) {
  __shared__ float partial[kNormThreads / 32];
  ptx::wait_for_previous();
  const int dim = params.dim;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * dim;
  const float* x = params.x + offset;
  float* out = params.out + offset;
  float factor = 1.0f;
  if (params.reference != nullptr) {
    const float* reference = params.reference + offset;
    const auto square = [](float value) { return value * value; };
    const float squares = row_sum(x, dim, is_aligned_row(x, dim), partial, square);
    const float wanted = row_sum(reference, dim, is_aligned_row(reference, dim), partial, square);
    factor = sqrtf(wanted / dim) / sqrtf(fmaxf(squares / dim, 1e-5f));
  }
  ptx::let_next_start();
  for (int i = threadIdx.x; i < dim; i += kNormThreads) {
    const float value = product(x[i], factor);
    out[i] = params.accumulate ? params.scale * (out[i] + value) : value;
  }
}

void match_magnitude(Stream& stream, const MatchMagnitudeArgs& params) {
  launch("match_magnitude", stream, match_magnitude_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows)},
          .block = {kNormThreads},
          .overlaps_previous = true},
         params);
}

// --- Residual streams: a thread per column of a row ---

// Writes `count` weights of the block's row to shared memory: weight i is coefficients[i, :] .
// modalities[row, :]. Every thread of the block calls it.
__device__ __forceinline__ void find_weights(const float* coefficients, const float* modalities,
                                             int num_streams, int count, float* weights) {
  const float* row = modalities + static_cast<int64_t>(blockIdx.x) * num_streams;
  for (int i = threadIdx.x; i < count; i += kEmbedThreads) {
    float sum = 0.0f;
    for (int j = 0; j < num_streams; ++j) {
      sum = fmaf(coefficients[i * num_streams + j], row[j], sum);
    }
    weights[i] = sum;
  }
  __syncthreads();
}

__global__ void predict_streams_kernel(PredictStreamsArgs params) {
  __shared__ float weights[kMaxStreams * kMaxStreams];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StreamsView& streams = params.streams;
  const int num_streams = streams.num_streams;
  find_weights(params.coefficients, params.modalities, num_streams, num_streams * num_streams,
               weights);
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= streams.dim) return;
  float* column = streams.data + static_cast<int64_t>(blockIdx.x) * streams.dim + i;
  float before[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) {
    before[j] = j < num_streams ? column[j * streams.stride] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    if (k >= num_streams) break;
    float mix = 0.0f;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j < num_streams) mix = fmaf(weights[k * num_streams + j], before[j], mix);
    }
    column[k * streams.stride] = before[k] + mix;
  }
}

__global__ void correct_streams_kernel(CorrectStreamsArgs params) {
  __shared__ float weights[kMaxStreams];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StreamsView& streams = params.streams;
  const int num_streams = streams.num_streams;
  find_weights(params.coefficients, params.modalities, num_streams, num_streams, weights);
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= streams.dim) return;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * streams.dim + i;
  float* column = streams.data + offset;
  const float change = params.activated[offset] - column[params.active * streams.stride];
  for (int k = 0; k < num_streams; ++k) {
    column[k * streams.stride] = fmaf(change, 1.0f + weights[k], column[k * streams.stride]);
  }
}

LaunchConfig columns_of(const StreamsView& streams) {
  return {.grid = {static_cast<unsigned>(streams.num_rows),
                   static_cast<unsigned>((streams.dim + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true};
}

void predict_streams(Stream& stream, const PredictStreamsArgs& params) {
  launch("predict_streams", stream, predict_streams_kernel, columns_of(params.streams), params);
}

void correct_streams(Stream& stream, const CorrectStreamsArgs& params) {
  launch("correct_streams", stream, correct_streams_kernel, columns_of(params.streams), params);
}

// --- Features ---

template <class T>
__global__ void store_rows_kernel(StoreRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= params.dim) return;
  const int64_t row = blockIdx.x;
  const int64_t slot = params.slot_mapping != nullptr ? params.slot_mapping[row] : row;
  if (slot < 0) return;
  T* out = static_cast<T*>(params.out) + slot * params.out_stride;
  out[i] = from_float<T>(params.x[row * params.dim + i]);
}

template <class T>
void launch_store_rows(Stream& stream, const StoreRowsParams& params) {
  launch("store_rows", stream, store_rows_kernel<T>,
         {.grid = {static_cast<unsigned>(params.num_rows),
                   static_cast<unsigned>((params.dim + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true},
         params);
}

void store_rows(Stream& stream, const StoreRowsParams& params) {
  if (params.act_dtype == DType::kBF16) return launch_store_rows<Bf16>(stream, params);
  launch_store_rows<Half>(stream, params);
}

template <class T>
__global__ void load_rows_kernel(LoadRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= params.dim) return;
  const int64_t row = blockIdx.x;
  const int64_t slot = params.slots != nullptr ? params.slots[row] : row;
  float value = 0.0f;
  if (slot >= 0)
    value = to_float(static_cast<const T*>(params.from)[slot * params.from_stride + i]);
  float* out = params.out + row * params.dim + i;
  *out = params.accumulate ? *out + value : value;
}

template <class T>
void launch_load_rows(Stream& stream, const LoadRowsParams& params) {
  launch("load_rows", stream, load_rows_kernel<T>,
         {.grid = {static_cast<unsigned>(params.num_rows),
                   static_cast<unsigned>((params.dim + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true},
         params);
}

void load_rows(Stream& stream, const LoadRowsParams& params) {
  if (params.act_dtype == DType::kBF16) return launch_load_rows<Bf16>(stream, params);
  launch_load_rows<Half>(stream, params);
}

__global__ void gather_rows_kernel(GatherRowsArgs args) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (i >= args.dim) return;
  const int64_t row = blockIdx.x;
  const float value = args.rows[int64_t{args.row_ids[row]} * args.dim + i];
  float* out = args.out + row * args.dim + i;
  *out = args.accumulate ? *out + value : value;
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  launch("gather_rows", stream, gather_rows_kernel,
         {.grid = {static_cast<unsigned>(args.num_rows),
                   static_cast<unsigned>((args.dim + kEmbedThreads - 1) / kEmbedThreads)},
          .block = {kEmbedThreads},
          .overlaps_previous = true},
         args);
}

}  // namespace

PointwiseKernels pointwise_kernels() {
  return {.norm = norm,
          .embed_act = embed_act,
          .embed_codes = embed_codes,
          .scale_rows = scale_rows,
          .sparse_gates = sparse_gates,
          .keep_clusters = keep_clusters,
          .predict_streams = predict_streams,
          .correct_streams = correct_streams,
          .match_magnitude = match_magnitude,
          .store_rows = store_rows,
          .load_rows = load_rows,
          .gather_rows = gather_rows};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
