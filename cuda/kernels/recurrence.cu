#include <cstdint>
#include <type_traits>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/recurrence.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

unsigned num_parts(int64_t size, int64_t part) {
  return static_cast<unsigned>((size + part - 1) / part);
}

__device__ __forceinline__ float silu(float x) { return activate(Activation::kSilu, x); }

template <class T>
__device__ __forceinline__ T rounded_to(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

// --- Short convolutions: a thread per channel ---

// The inputs of a request's tokens for one channel.
class ConvInputs {
 public:
  __device__ ConvInputs(const ShortConvParams& params, int request, int channel)
      : params_(params),
        rows_(params.batch.recurrent),
        row_begin_(params.batch.cu_rows[request]),
        slot_in_(rows_.slots_in[request]),
        pending_begin_(rows_.cu_pending[request]),
        num_pending_(rows_.cu_pending[request + 1] - pending_begin_),
        channel_(channel) {}

  __device__ float row(int index) const {
    const int64_t at = int64_t{row_begin_ + index} * params_.stride + channel_;
    const float x = params_.x[at];
    return params_.input_gates != nullptr ? product(x, params_.input_gates[at]) : x;
  }
  // Of the state in: index -1 is its last input.
  __device__ float before(int index) const {
    if (slot_in_ < 0) return 0.0f;
    const int64_t at = int64_t{slot_in_ + 1} * (params_.width - 1) + index;
    return params_.tails[at * params_.num_channels + channel_];
  }
  // Of a pending record.
  __device__ float pending(int index) const {
    const int64_t record = rows_.pending[pending_begin_ + index];
    return params_.conv_records[record * params_.num_channels + channel_];
  }
  // Of the ancestor of `row_index` that is `back` rows back.
  __device__ float ancestor(int row_index, int back) const {
    while (back > 0 && row_index >= 0) {
      row_index = rows_.parents[row_begin_ + row_index];
      --back;
    }
    if (row_index >= 0) return row(row_index);
    const int index = num_pending_ - 1 - back;
    return index >= 0 ? pending(index) : before(index);
  }
  __device__ int row_begin() const { return row_begin_; }
  __device__ int num_pending() const { return num_pending_; }

 private:
  const ShortConvParams& params_;
  const RecurrentRows& rows_;
  const int row_begin_;
  const int slot_in_;
  const int pending_begin_;
  const int num_pending_;
  const int channel_;
};

// The last request that begins at or before `row`.
__device__ __forceinline__ int request_of(const RecurrentBatch& batch, int row) {
  int begin = 0, end = batch.num_requests;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    if (batch.cu_rows[middle] <= row) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <class T>
__global__ void short_conv_kernel(ShortConvParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const RecurrentBatch& batch = params.batch;
  const int row = blockIdx.x;
  const int channel = blockIdx.y * kThreads + threadIdx.x;
  if (channel >= params.num_channels || row >= batch.cu_rows[batch.num_requests]) return;
  const ConvInputs inputs(params, request_of(batch, row), channel);
  const int index = row - inputs.row_begin();
  const float* weight = params.weight + int64_t{channel} * params.width;
  float sum = 0.0f;
  for (int i = 0; i < params.width; ++i) {
    sum = fmaf(weight[i], inputs.ancestor(index, params.width - 1 - i), sum);
  }
  if (params.bias != nullptr) sum = params.bias[channel] + sum;
  if (params.silu) sum = silu(sum);
  if (params.output_gates != nullptr) {
    sum = product(sum, params.output_gates[int64_t{row} * params.stride + channel]);
  }
  static_cast<T*>(params.out)[int64_t{row} * params.num_channels + channel] = rounded_to<T>(sum);
  const int64_t record = batch.recurrent.records[row];
  if (record >= 0) params.conv_records[record * params.num_channels + channel] = inputs.row(index);
}

template <class T>
void launch_short_conv(Stream& stream, const ShortConvParams& params) {
  launch("short_conv", stream, short_conv_kernel<T>,
         {.grid = {static_cast<unsigned>(params.batch.num_rows),
                   num_parts(params.num_channels, kThreads)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void short_conv(Stream& stream, const ShortConvParams& params) {
  if (params.out_dtype == DType::kBF16) return launch_short_conv<Bf16>(stream, params);
  if (params.out_dtype == DType::kF16) return launch_short_conv<Half>(stream, params);
  launch_short_conv<float>(stream, params);
}

__global__ void store_tails_kernel(ShortConvParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const RecurrentRows& rows = params.batch.recurrent;
  const int request = blockIdx.x;
  const int channel = blockIdx.y * kThreads + threadIdx.x;
  const int end = rows.cu_stores[request + 1];
  int store = rows.cu_stores[request];
  if (channel >= params.num_channels || store == end) return;
  const ConvInputs inputs(params, request, channel);
  const int num_inputs = params.width - 1;
  float before[kMaxConvWidth - 1];  // read before a store may replace them; the last one first
#pragma unroll
  for (int i = 0; i < kMaxConvWidth - 1; ++i) {
    before[i] = i < num_inputs ? inputs.before(-1 - i) : 0.0f;
  }
  for (; store < end; ++store) {
    const StateStore stored = rows.stores[store];
    for (int i = 0; i < num_inputs; ++i) {
      const int token = stored.num_tokens - num_inputs + i;
      float value = 0.0f;
      if (token >= inputs.num_pending()) {
        value = inputs.row(token - inputs.num_pending());
      } else if (token >= 0) {
        value = inputs.pending(token);
      } else {
#pragma unroll
        for (int j = 0; j < kMaxConvWidth - 1; ++j) {
          if (token == -1 - j) value = before[j];
        }
      }
      const int64_t at = int64_t{stored.slot} * num_inputs + i;
      params.tails[at * params.num_channels + channel] = value;
    }
  }
}

void store_tails(Stream& stream, const ShortConvParams& params) {
  launch("store_tails", stream, store_tails_kernel,
         {.grid = {static_cast<unsigned>(params.batch.num_requests),
                   num_parts(params.num_channels, kThreads)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

// --- Linear recurrences: rows, a warp per row and key head ---

constexpr int kSlices = 8;  // of sums over key_dim

// The sum over the slices, which neighbouring lanes `distance` apart hold, in order.
__device__ __forceinline__ float fold_slices(float sum, int distance) {
#pragma unroll
  for (int i = 0; i < 3; ++i) sum += __shfl_xor_sync(kAllLanes, sum, distance << i);
  return sum;
}

// x * scale / |x|. All lanes of the warp call it.
__device__ __forceinline__ void normalize(float* x, int dim, float scale) {
  const int lane = threadIdx.x % kWarpSize;
  float squares = 0.0f;
  for (int i = lane; i < dim; i += kWarpSize) squares = fmaf(x[i], x[i], squares);
  const float factor = scale / sqrtf(warp_sum(squares) + 1e-6f);
  for (int i = lane; i < dim; i += kWarpSize) x[i] = product(x[i], factor);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__global__ void prepare_kernel(RecurrenceParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const bool is_delta = params.kind == RecurrenceKind::kGatedDelta;
  const int64_t row = blockIdx.x;
  // Rows of no request are left alone.
  if (row >= params.batch.cu_rows[params.batch.num_requests]) return;
  const int64_t index = params.batch.recurrent.records[row];
  float* record = index >= 0 ? params.state_records + index * params.record_size : nullptr;
  if (blockIdx.y == 0) {
    for (int head = threadIdx.x; head < params.num_heads; head += kThreads) {
      float* decay = params.steps + row * params.step_stride + head;
      float* factor = params.factors + row * params.factor_stride + head;
      const float step = softplus(*decay + params.step_bias[head]);
      *decay = expf(product(params.decay_rates[head], step));
      *factor = is_delta ? 1.0f / (1.0f + expf(-*factor)) : step;
      if (record != nullptr) record[params.record_size - params.num_heads + head] = *decay;
    }
  }
  const int head = blockIdx.y * kWarps + threadIdx.x / kWarpSize;
  if (head >= params.num_key_heads) return;
  const int lane = threadIdx.x % kWarpSize;
  const int dim = params.key_dim;
  float* queries = params.queries + row * params.stride + head * dim;
  float* keys = params.keys + row * params.stride + head * dim;
  if (is_delta) {
    normalize(queries, dim, 1.0f / sqrtf(static_cast<float>(dim)));
    normalize(keys, dim, 1.0f);
    __syncwarp();  // lanes read what others wrote
  }
  const int run = dim / kSlices, first = lane % kSlices * run;
  float sum = 0.0f;
  for (int i = first; i < first + run; ++i) sum = fmaf(keys[i], queries[i], sum);
  sum = fold_slices(sum, 1);
  if (lane == 0) params.dots[row * params.num_key_heads + head] = sum;
  if (record == nullptr) return;
  for (int i = lane; i < dim; i += kWarpSize) record[head * dim + i] = keys[i];
}

void prepare(Stream& stream, const RecurrenceParams& params) {
  launch("prepare_recurrence", stream, prepare_kernel,
         {.grid = {static_cast<unsigned>(params.batch.num_rows),
                   num_parts(params.num_key_heads, kWarps)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

// --- Linear recurrences: states ---

// A block keeps kSlabColumns columns of a head's matrix in registers, over all tokens of a request.
// Eight lanes share two columns, a slice each.
constexpr int kSlabColumns = 32;
constexpr int kOwnColumns = 2;
constexpr int kPairs = kWarpSize / kSlices;  // of columns per warp
constexpr int kStagedTokens = 8;             // that shared memory holds at once
static_assert(kWarps * kPairs * kOwnColumns == kSlabColumns);

// What shared memory holds of a record or row. kRun: the most elements of a slice; shorter ones
// are padded with zeros. The last four keep reads of the slices out of each other's banks.
template <int kRun>
struct StagedToken {
  static constexpr int kSliceStride = kRun + 4;
  float keys[kSlices * kSliceStride];
  float queries[kSlices * kSliceStride];  // of rows, like what follows `decay`
  float values[kSlabColumns];             // updates of records
  float decay;
  float factor;
  float dot;
  int32_t row;  // in the batch
};
template <int kRun>
struct SlabMemory {
  StagedToken<kRun> tokens[kStagedTokens];
  float state[kRun * kOwnColumns * kThreads];  // that paths begin with
  int32_t path[kStagedTokens];                 // rows of the request
  int32_t num_chained;
  int32_t branch;
};

template <int kRun, bool kIsDelta>
class SlabRun {
 public:
  using Memory = SlabMemory<kRun>;
  using Token = StagedToken<kRun>;

  __device__ __forceinline__ SlabRun(const RecurrenceParams& params, Memory& memory)
      : params_(params), rows_(params.batch.recurrent), memory_(memory) {
    const int num_slabs = (params.value_dim + kSlabColumns - 1) / kSlabColumns;
    head_ = blockIdx.x / num_slabs;
    key_head_ = head_ / (params.num_heads / params.num_key_heads);
    first_column_ = blockIdx.x % num_slabs * kSlabColumns;
    const int lane = threadIdx.x % kWarpSize;
    slice_ = lane / kPairs;
    column_ = (threadIdx.x / kWarpSize * kPairs + lane % kPairs) * kOwnColumns;
    run_ = params.key_dim / kSlices;
  }

  __device__ __forceinline__ void run(int request) {
    row_begin_ = params_.batch.cu_rows[request];
    num_rows_ = params_.batch.cu_rows[request + 1] - row_begin_;
    store_ = rows_.cu_stores[request];
    store_end_ = rows_.cu_stores[request + 1];
    if (num_rows_ == 0 && store_ == store_end_) return;
    read_state(rows_.slots_in[request]);
    const int pending = rows_.cu_pending[request];
    num_tokens_ = 0;
    fold_records(rows_.pending + pending, rows_.cu_pending[request + 1] - pending);
    find_chain();
    const int num_chained = memory_.num_chained, branch = memory_.branch;
    const bool has_tree = num_chained < num_rows_;
    if (has_tree && branch < 0) save_state();
    // First the chain, then the path to each leaf of what hangs on it.
    for (int leaf = num_chained - 1; leaf < num_rows_; ++leaf) {
      const bool is_chain = leaf < num_chained;
      if (!is_chain) {
        if (has_children(leaf)) continue;
        load_state();
      }
      run_path(is_chain ? -1 : branch, leaf, is_chain, is_chain && has_tree ? branch : num_rows_);
    }
  }

 private:
  __device__ __forceinline__ bool is_column(int i) const {
    return first_column_ + column_ + i < params_.value_dim;
  }
  // Of the thread's first column, in a slot.
  __device__ __forceinline__ float* matrix(int slot) const {
    const int64_t matrix = int64_t{slot} * params_.num_heads + head_;
    return params_.matrices +
           (matrix * params_.key_dim + int64_t{slice_} * run_) * params_.value_dim + first_column_ +
           column_;
  }
  __device__ __forceinline__ void read_state(int slot) {
    const float* from = matrix(max(slot, 0));
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) {
        const bool is_there = slot >= 0 && i < run_ && is_column(c);
        state_[i][c] = is_there ? from[int64_t{i} * params_.value_dim + c] : 0.0f;
      }
    }
  }
  // Stores the state where that after num_tokens_ tokens is to go.
  __device__ __forceinline__ void write_stores() {
    for (; store_ < store_end_ && rows_.stores[store_].num_tokens == num_tokens_; ++store_) {
      float* to = matrix(rows_.stores[store_].slot);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
#pragma unroll
        for (int c = 0; c < kOwnColumns; ++c) {
          if (i < run_ && is_column(c)) to[int64_t{i} * params_.value_dim + c] = state_[i][c];
        }
      }
    }
  }
  // A thread keeps its own part of the state in shared memory.
  __device__ __forceinline__ float& saved(int i, int c) const {
    return memory_.state[(i * kOwnColumns + c) * kThreads + threadIdx.x];
  }
  __device__ __forceinline__ void save_state() {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) saved(i, c) = state_[i][c];
    }
  }
  __device__ __forceinline__ void load_state() {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) state_[i][c] = saved(i, c);
    }
  }

  // Copies a head's keys or queries, with zeros after each slice.
  __device__ __forceinline__ void stage_slices(const float* from, float* to) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < kSlices * kRun; i += kThreads) {
      const int slice = i / kRun, element = i % kRun;
      to[slice * Token::kSliceStride + element] =
          element < run_ ? from[slice * run_ + element] : 0.0f;
    }
  }
  __device__ __forceinline__ void stage_values(const float* from, float* to) const {
    const int column = threadIdx.x;
    if (column >= kSlabColumns) return;
    to[column] = first_column_ + column < params_.value_dim ? from[column] : 0.0f;
  }
  __device__ __forceinline__ int64_t first_value() const {
    return int64_t{head_} * params_.value_dim + first_column_;
  }
  __device__ __forceinline__ int64_t first_recorded_value() const {
    return int64_t{params_.num_key_heads} * params_.key_dim + first_value();
  }
  __device__ __forceinline__ void stage_record(int64_t index, Token& to) const {
    const float* record = params_.state_records + index * params_.record_size;
    stage_slices(record + int64_t{key_head_} * params_.key_dim, to.keys);
    stage_values(record + first_recorded_value(), to.values);
    if (threadIdx.x == 0) to.decay = record[params_.record_size - params_.num_heads + head_];
  }
  __device__ __forceinline__ void stage_row(int index, Token& to) const {
    const int64_t row = row_begin_ + index;
    const int64_t at = row * params_.stride + int64_t{key_head_} * params_.key_dim;
    stage_slices(params_.keys + at, to.keys);
    stage_slices(params_.queries + at, to.queries);
    stage_values(params_.values + row * params_.stride + first_value(), to.values);
    if (threadIdx.x != 0) return;
    to.decay = params_.steps[row * params_.step_stride + head_];
    to.factor = params_.factors[row * params_.factor_stride + head_];
    to.dot = params_.dots[row * params_.num_key_heads + key_head_];
    to.row = static_cast<int32_t>(row);
  }

  // S = decay * S + key update^T
  __device__ __forceinline__ void update(const Token& token, const float (&updates)[kOwnColumns]) {
    const float* keys = token.keys + slice_ * Token::kSliceStride;
#pragma unroll
    for (int i = 0; i < kRun; i += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(keys + i);
      const float key[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < kOwnColumns; ++c) {
          state_[i + j][c] = fmaf(key[j], updates[c], product(token.decay, state_[i + j][c]));
        }
      }
    }
  }
  __device__ __forceinline__ void fold_records(const int32_t* pending, int count) {
    for (int begin = 0; begin < count; begin += kStagedTokens) {
      const int num_staged = min(count - begin, kStagedTokens);
      __syncthreads();  // the tokens before have been read
#pragma unroll 1
      for (int i = 0; i < num_staged; ++i) stage_record(pending[begin + i], memory_.tokens[i]);
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < num_staged; ++i) {
        const Token& token = memory_.tokens[i];
        const float updates[kOwnColumns] = {token.values[column_], token.values[column_ + 1]};
        update(token, updates);
        ++num_tokens_;
        write_stores();
      }
    }
  }

  // S^T times a staged vector, for the thread's columns.
  __device__ __forceinline__ void dot(const float* staged, float (&sums)[kOwnColumns]) const {
    const float* vector = staged + slice_ * Token::kSliceStride;
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) sums[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kRun; i += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(vector + i);
      const float element[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < kOwnColumns; ++c) {
          sums[c] = fmaf(state_[i + j][c], element[j], sums[c]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) sums[c] = fold_slices(sums[c], kPairs);
  }
  // The row's result and update, and the state after it.
  __device__ __forceinline__ void step(const Token& token) {
    float by_key[kOwnColumns], by_query[kOwnColumns], updates[kOwnColumns];
    if constexpr (kIsDelta) dot(token.keys, by_key);
    dot(token.queries, by_query);
    const int64_t record = rows_.records[token.row];
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) {
      const float value = token.values[column_ + c];
      float change = value;
      if constexpr (kIsDelta) change = fmaf(-token.decay, by_key[c], value);
      updates[c] = product(token.factor, change);
      float result = fmaf(token.dot, updates[c], product(token.decay, by_query[c]));
      if (params_.skip != nullptr) result = fmaf(params_.skip[head_], value, result);
      if (slice_ != 0 || !is_column(c)) continue;
      const int64_t at = first_value() + column_ + c;
      params_.out[int64_t{token.row} * params_.num_heads * params_.value_dim + at] = result;
      if (record < 0) continue;
      params_.state_records[record * params_.record_size + first_recorded_value() + column_ + c] =
          updates[c];
    }
    update(token, updates);
  }
  // Finds how many rows are a chain from the first, and the lowest row of the chain that others
  // hang on: what is below it never has to be run again.
  __device__ __forceinline__ void find_chain() {
    if (threadIdx.x == 0) {
      memory_.num_chained = num_rows_;
      memory_.branch = num_rows_;
    }
    __syncthreads();
    const int32_t* parents = rows_.parents + row_begin_;
    for (int row = threadIdx.x; row < num_rows_; row += kThreads) {
      if (parents[row] != row - 1) atomicMin(&memory_.num_chained, row);
    }
    __syncthreads();
    const int num_chained = memory_.num_chained;
    for (int row = num_chained + threadIdx.x; row < num_rows_; row += kThreads) {
      if (parents[row] < num_chained) atomicMin(&memory_.branch, parents[row]);
    }
    __syncthreads();
  }
  // All threads of the block call it.
  __device__ __forceinline__ bool has_children(int row) const {
    bool has = false;
    for (int i = row + 1 + threadIdx.x; i < num_rows_; i += kThreads) {
      has = has || rows_.parents[row_begin_ + i] == row;
    }
    return __syncthreads_or(has) != 0;
  }
  // Runs the rows below `branch` down to `leaf`, and saves the state after row `saved_row`. The
  // stores are those of a chain.
  __device__ __forceinline__ void run_path(int branch, int leaf, bool is_chain, int saved_row) {
    const int32_t* parents = rows_.parents + row_begin_;
    const int thread = threadIdx.x;
    int length = leaf + 1;
    if (!is_chain) {
      length = 0;
      for (int row = leaf; row != branch; row = parents[row]) ++length;
    }
    for (int begin = 0; begin < length; begin += kStagedTokens) {
      const int num_staged = min(length - begin, kStagedTokens);
      __syncthreads();  // the path and the tokens before have been read
      if (is_chain) {
        if (thread < num_staged) memory_.path[thread] = begin + thread;
      } else if (thread == 0) {
        int row = leaf;
        for (int i = length - 1 - begin; i >= 0; --i) {
          if (i < num_staged) memory_.path[i] = row;
          row = parents[row];
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < num_staged; ++i) stage_row(memory_.path[i], memory_.tokens[i]);
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < num_staged; ++i) {
        step(memory_.tokens[i]);
        if (!is_chain) continue;
        ++num_tokens_;
        write_stores();
        if (begin + i == saved_row) save_state();
      }
    }
  }

  const RecurrenceParams& params_;
  const RecurrentRows& rows_;
  Memory& memory_;
  int head_;
  int key_head_;
  int first_column_;  // of the block
  int slice_;         // of the thread
  int column_;        // its first, of the block's
  int run_;           // elements of a slice
  // Of the request.
  int row_begin_ = 0;
  int num_rows_ = 0;
  int store_ = 0;  // the next
  int store_end_ = 0;
  int num_tokens_ = 0;
  float state_[kRun][kOwnColumns];
};

template <int kRun, bool kIsDelta>
__global__ void __launch_bounds__(kThreads, kRun > 16 ? 3 : 4)
    recurrence_kernel(RecurrenceParams params) {
  SPECDEC_SHARED_BYTES(bytes);
  ptx::wait_for_previous();
  ptx::let_next_start();
  SlabRun<kRun, kIsDelta>(params, *reinterpret_cast<SlabMemory<kRun>*>(bytes)).run(blockIdx.y);
}

template <int kRun, bool kIsDelta>
void launch_recurrence(Stream& stream, const RecurrenceParams& params) {
  const unsigned num_slabs = num_parts(params.value_dim, kSlabColumns);
  launch("recurrence", stream, recurrence_kernel<kRun, kIsDelta>,
         {.grid = {static_cast<unsigned>(params.num_heads) * num_slabs,
                   static_cast<unsigned>(params.batch.num_requests)},
          .block = {kThreads},
          .shared_bytes = sizeof(SlabMemory<kRun>),
          .overlaps_previous = true},
         params);
}

template <int kRun>
void recurrence_of(Stream& stream, const RecurrenceParams& params) {
  if (params.kind == RecurrenceKind::kGatedDelta) {
    return launch_recurrence<kRun, true>(stream, params);
  }
  launch_recurrence<kRun, false>(stream, params);
}

void recurrence(Stream& stream, const RecurrenceParams& params) {
  const int run = params.key_dim / kSlices;
  if (run <= 4) return recurrence_of<4>(stream, params);
  if (run <= 16) return recurrence_of<16>(stream, params);
  recurrence_of<kMaxKeyDim / kSlices>(stream, params);
}

// --- Gated norms: a block per row and group ---

__global__ void gate_kernel(GateParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int64_t row = blockIdx.x;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= params.width) return;
  const int64_t at = row * params.width + i;
  params.out[at] = product(params.x[at], silu(params.gates[row * params.gate_stride + i]));
}

void gate(Stream& stream, const GateParams& params) {
  launch("gate", stream, gate_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows), num_parts(params.width, kThreads)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

// The sum of the block's values, for every thread; always added in the same order.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float total = partial[0];
  for (int warp = 1; warp < kWarps; ++warp) total += partial[warp];
  return total;
}

template <class T>
__global__ void gated_norm_kernel(GatedNormParams params) {
  __shared__ float partial[kWarps];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int dim = params.dim;
  const int64_t row = blockIdx.x;
  const int group_begin = (params.first / dim + static_cast<int>(blockIdx.y)) * dim;
  const float* x = params.x + row * params.num_groups * dim + group_begin;
  const float* gates = nullptr;
  if (params.gates != nullptr) gates = params.gates + row * params.gate_stride + group_begin;
  const bool gates_input = params.gates_first && gates != nullptr;
  T* out = static_cast<T*>(params.out) + row * params.width;
  const auto input = [&](int i) { return gates_input ? product(x[i], silu(gates[i])) : x[i]; };
  float squares = 0.0f;
  for (int i = threadIdx.x; i < dim; i += kThreads) squares = fmaf(input(i), input(i), squares);
  const float scale = 1.0f / sqrtf(block_sum(squares, partial) / dim + params.eps);
  const int end = min(params.first + params.width - group_begin, dim);
  for (int i = max(params.first - group_begin, 0) + threadIdx.x; i < end; i += kThreads) {
    const int own = group_begin + i - params.first;
    float value = product(product(input(i), scale), params.weight[own]);
    if (!params.gates_first) value = product(value, silu(gates[i]));
    out[own] = from_float<T>(value);
  }
}

template <class T>
void launch_gated_norm(Stream& stream, const GatedNormParams& params) {
  const unsigned num_groups = num_parts(params.first + params.width, params.dim) -
                              static_cast<unsigned>(params.first / params.dim);
  launch("gated_norm", stream, gated_norm_kernel<T>,
         {.grid = {static_cast<unsigned>(params.num_rows), num_groups},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void gated_norm(Stream& stream, const GatedNormParams& params) {
  if (params.act_dtype == DType::kBF16) return launch_gated_norm<Bf16>(stream, params);
  launch_gated_norm<Half>(stream, params);
}

}  // namespace

RecurrenceKernels recurrence_kernels() {
  return {.short_conv = short_conv,
          .store_tails = store_tails,
          .prepare = prepare,
          .recurrence = recurrence,
          .gate = gate,
          .gated_norm = gated_norm};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
