// Shared by the kernels that make the rows of a pass from the requests' state.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kStepThreads = 256;

// These kernels run as one block; each thread has a few consecutive seats.
struct SeatRange {
  int begin;
  int end;
};
__device__ __forceinline__ SeatRange seats_of_thread(int num_seats) {
  const int share = (num_seats + kStepThreads - 1) / kStepThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, num_seats);
  return {begin, min(begin + share, num_seats)};
}

// What some seats have in a pass.
struct StepCounts {
  int rows = 0;
  int drafts = 0;
  int pending = 0;  // records, and stores, of recurrent states
  int stores = 0;
};
__device__ __forceinline__ StepCounts operator+(const StepCounts& a, const StepCounts& b) {
  return {a.rows + b.rows, a.drafts + b.drafts, a.pending + b.pending, a.stores + b.stores};
}

// The sum over the threads before this one; *total becomes the sum over all threads. A block may
// call it once.
__device__ __forceinline__ StepCounts exclusive_scan(StepCounts own, StepCounts* total) {
  __shared__ StepCounts sums[kStepThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  StepCounts inclusive = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const StepCounts below = {__shfl_up_sync(0xffffffffu, inclusive.rows, distance),
                              __shfl_up_sync(0xffffffffu, inclusive.drafts, distance),
                              __shfl_up_sync(0xffffffffu, inclusive.pending, distance),
                              __shfl_up_sync(0xffffffffu, inclusive.stores, distance)};
    if (lane >= distance) inclusive = inclusive + below;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  StepCounts before = {inclusive.rows - own.rows, inclusive.drafts - own.drafts,
                       inclusive.pending - own.pending, inclusive.stores - own.stores};
  *total = {};
  for (int i = 0; i < kStepThreads / 32; ++i) {
    const StepCounts sum = sums[i];
    if (i < warp) before = before + sum;
    *total = *total + sum;
  }
  return before;
}

__device__ __forceinline__ int64_t kv_slot(const StepState& state, int seat, int position) {
  const int32_t block = state.block_tables[static_cast<int64_t>(seat) * state.max_blocks +
                                           position / state.block_size];
  return static_cast<int64_t>(block) * state.block_size + position % state.block_size;
}

// The KV slot is that of position `kv_position`, which in a tree is not the token's position.
__device__ __forceinline__ void put_row(const StepState& state, const StepBatch& batch, int row,
                                        int seat, int32_t token, int position, int kv_position) {
  batch.token_ids[row] = token;
  batch.positions[row] = position;
  batch.slot_mapping[row] = kv_slot(state, seat, kv_position);
}

// For a draft head's row: the KV position of the features that it continues, and the KV position
// where its state is kept, or -1 for nowhere.
__device__ __forceinline__ void put_draft_head_row(const StepState& state, const StepBatch& batch,
                                                   int row, int seat, int feature_position,
                                                   int state_position) {
  if (batch.feature_slots == nullptr) return;
  batch.feature_slots[row] = kv_slot(state, seat, feature_position);
  batch.state_slots[row] = state_position < 0 ? -1 : kv_slot(state, seat, state_position);
}

// Padding rows write to the null block.
__device__ __forceinline__ void pad_rows(const StepBatch& batch, int num_rows) {
  for (int row = num_rows + threadIdx.x; row < batch.max_rows; row += kStepThreads) {
    batch.token_ids[row] = 0;
    batch.positions[row] = 0;
    batch.slot_mapping[row] = 0;
    if (batch.feature_slots != nullptr) batch.feature_slots[row] = batch.state_slots[row] = -1;
  }
}

// The sample of the token after the first `num_path` tokens of `path`, which follow the root.
__device__ __forceinline__ DeviceSampleRow sample_after(const StepSeat& seat, const int32_t* path,
                                                        int num_path) {
  DeviceSampleRow row = seat.sampling;
  row.position = seat.num_tokens + num_path;
  row.path = path;
  row.num_path_tokens = num_path;
  if (row.position - seat.num_prompt_tokens >= seat.min_tokens) row.early_banned = {};
  return row;
}

// The same for a token that the draft model drafts.
__device__ __forceinline__ DeviceSampleRow draft_after(const StepSeat& seat, const int32_t* path,
                                                       int num_path, const StepMemory& memory) {
  DeviceSampleRow row = sample_after(seat, path, num_path);
  const int width = memory.growths.shape.width;
  row.want_logprobs = 0;
  row.num_logprobs = 0;
  row.num_candidates = width > 1 ? width : 0;
  if (memory.argmax != 0) row.temperature = 0.0f;
  return row;
}

inline constexpr LaunchConfig kOneStepBlock = {
    .grid = {1}, .block = {kStepThreads}, .shared_bytes = 0, .overlaps_previous = true};

}  // namespace specdec::cuda::SPECDEC_TARGET
