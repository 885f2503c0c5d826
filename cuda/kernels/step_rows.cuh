// What the kernels share that make rows of requests.
#pragma once

#include "cuda/common/target.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {

inline constexpr int kStepThreads = 256;

// One block does it all: a thread has a few consecutive slots.
struct SlotRange {
  int begin;
  int end;
};
__device__ __forceinline__ SlotRange slots_of_thread(int num_slots) {
  const int share = (num_slots + kStepThreads - 1) / kStepThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, num_slots);
  return {begin, min(begin + share, num_slots)};
}

// Rows and drafts of some slots.
struct StepCounts {
  int rows = 0;
  int drafts = 0;
};

// What the threads before this one count; `total` gets what all do. Once a kernel.
__device__ __forceinline__ StepCounts exclusive_scan(StepCounts own, StepCounts* total) {
  __shared__ StepCounts sums[kStepThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  StepCounts inclusive = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int rows = __shfl_up_sync(0xffffffffu, inclusive.rows, distance);
    const int drafts = __shfl_up_sync(0xffffffffu, inclusive.drafts, distance);
    if (lane >= distance) {
      inclusive.rows += rows;
      inclusive.drafts += drafts;
    }
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  StepCounts before = {inclusive.rows - own.rows, inclusive.drafts - own.drafts};
  *total = {};
  for (int i = 0; i < kStepThreads / 32; ++i) {
    const StepCounts sum = sums[i];
    if (i < warp) before = {before.rows + sum.rows, before.drafts + sum.drafts};
    *total = {total->rows + sum.rows, total->drafts + sum.drafts};
  }
  return before;
}

__device__ __forceinline__ int64_t kv_slot(const StepSlots& state, int slot, int position) {
  const int32_t block = state.block_tables[static_cast<int64_t>(slot) * state.max_blocks +
                                           position / state.block_size];
  return static_cast<int64_t>(block) * state.block_size + position % state.block_size;
}

// `place` is where its KV lies: its position, but for the nodes of a tree.
__device__ __forceinline__ void put_row(const StepSlots& state, const StepBatch& batch, int row,
                                        int slot, int32_t token, int position, int place) {
  batch.token_ids[row] = token;
  batch.positions[row] = position;
  batch.slot_mapping[row] = kv_slot(state, slot, place);
}

// Padding goes to the null block.
__device__ __forceinline__ void pad_rows(const StepBatch& batch, int num_rows) {
  for (int row = num_rows + threadIdx.x; row < batch.max_rows; row += kStepThreads) {
    batch.token_ids[row] = 0;
    batch.positions[row] = 0;
    batch.slot_mapping[row] = 0;
  }
}

// The longest draft of a slot in a step that asks for num_drafts: the step commits one token more.
__device__ __forceinline__ int draft_limit(const StepSlot& slot, int num_drafts) {
  if (slot.is_active == 0) return 0;
  return max(0, min(min(num_drafts, slot.max_drafts), slot.max_num_tokens - slot.num_tokens - 1));
}

// The row that samples the token after `num_path` drafts.
__device__ __forceinline__ DeviceSampleRow sample_after(const StepSlot& slot, const int32_t* path,
                                                        int num_path) {
  DeviceSampleRow row = slot.sampling;
  row.position = slot.num_tokens + num_path;
  row.path = path;
  row.num_path_tokens = num_path;
  if (row.position - slot.num_prompt_tokens >= slot.min_tokens) row.early_banned = {};
  return row;
}

inline constexpr LaunchConfig kOneStepBlock = {
    .grid = {1}, .block = {kStepThreads}, .shared_bytes = 0, .overlaps_previous = true};

}  // namespace specdec::cuda::SPECDEC_TARGET
