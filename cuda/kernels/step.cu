#include "cuda/device/philox.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels/step.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// One block does it all: a thread has up to kSlotsPerThread consecutive slots.
constexpr int kThreads = 256;
constexpr int kSlotsPerThread = kMaxStepSlots / kThreads;

// Sum of the values of the threads before this one; `total` gets that of all.
__device__ int exclusive_scan(int value, int* total) {
  __shared__ int sums[kThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int inclusive = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += sums[i];
    all += sums[i];
  }
  *total = all;
  return before + inclusive - value;
}

__device__ int64_t kv_slot(const StepSlots& state, int slot, int position) {
  const int32_t block = state.block_tables[static_cast<int64_t>(slot) * state.max_blocks +
                                           position / state.block_size];
  return static_cast<int64_t>(block) * state.block_size + position % state.block_size;
}

__device__ void put_row(const StepSlots& state, const StepBatch& batch, int row, int slot,
                        int32_t token, int position) {
  batch.token_ids[row] = token;
  batch.positions[row] = position;
  batch.slot_mapping[row] = kv_slot(state, slot, position);
}

// Padding goes to the null block.
__device__ void pad_rows(const StepBatch& batch, int num_rows) {
  for (int row = num_rows + threadIdx.x; row < batch.max_rows; row += kThreads) {
    batch.token_ids[row] = 0;
    batch.positions[row] = 0;
    batch.slot_mapping[row] = 0;
  }
}

// The longest draft of a slot in a step that asks for num_drafts: the step commits one token more.
__device__ int draft_limit(const StepSlot& slot, int num_drafts) {
  if (slot.is_active == 0) return 0;
  return max(0, min(min(num_drafts, slot.max_drafts), slot.max_num_tokens - slot.num_tokens - 1));
}

// The row that samples the token after `num_path` drafts.
__device__ DeviceSampleRow sample_after(const StepSlot& slot, int num_path) {
  DeviceSampleRow row = slot.sampling;
  row.position = slot.num_tokens + num_path;
  row.path = slot.drafts;
  row.num_path_tokens = num_path;
  if (row.position - slot.num_prompt_tokens >= slot.min_tokens) row.early_banned = {};
  return row;
}

__global__ void __launch_bounds__(kThreads) draft_rows_kernel(DraftRowsParams params) {
  ptx::wait_for_previous();
  const StepSlots& state = params.state;
  const StepBatch& batch = params.batch;
  if (threadIdx.x == 0 && params.started != nullptr) *params.started = ptx::nanoseconds();
  const int first_slot = threadIdx.x * kSlotsPerThread;
  int num_rows = 0;
  for (int i = first_slot; i < min(first_slot + kSlotsPerThread, state.num_slots); ++i) {
    StepSlot& slot = state.slots[i];
    if (params.pass == 0) {
      slot.num_drafts = draft_limit(slot, params.num_drafts);
    } else if (slot.num_drafts >= params.pass) {
      slot.drafts[params.pass - 1] = params.sampled[i];
    }
    if (slot.num_drafts > params.pass) {
      num_rows += params.pass == 0 ? slot.num_tokens - slot.num_draft_tokens : 1;
    }
  }
  int total = 0;
  int row = exclusive_scan(num_rows, &total);
  for (int i = first_slot; i < min(first_slot + kSlotsPerThread, state.num_slots); ++i) {
    const StepSlot& slot = state.slots[i];
    batch.cu_rows[i] = row;
    batch.base_lens[i] = 0;
    batch.sample_ids[i] = 0;
    batch.samples[i] = DeviceSampleRow{};
    if (slot.num_drafts <= params.pass) continue;
    if (params.pass == 0) {
      const int begin = slot.num_draft_tokens;
      batch.base_lens[i] = begin;
      for (int position = begin; position < slot.num_tokens; ++position) {
        put_row(state, batch, row++, i, slot.tail[kStepTail - (slot.num_tokens - position)],
                position);
      }
    } else {
      const int position = slot.num_tokens - 1 + params.pass;
      batch.base_lens[i] = position;
      put_row(state, batch, row++, i, slot.drafts[params.pass - 1], position);
    }
    batch.sample_ids[i] = row - 1;
    DeviceSampleRow sample = sample_after(slot, params.pass);
    sample.want_logprobs = 0;
    sample.num_logprobs = 0;
    if (params.argmax != 0) sample.temperature = 0.0f;
    batch.samples[i] = sample;
  }
  if (threadIdx.x == 0) batch.cu_rows[state.num_slots] = total;
  pad_rows(batch, total);
}

__global__ void __launch_bounds__(kThreads) verify_rows_kernel(VerifyRowsParams params) {
  ptx::wait_for_previous();
  const StepSlots& state = params.state;
  const StepBatch& batch = params.batch;
  if (threadIdx.x == 0) *params.started = ptx::nanoseconds();
  const int first_slot = threadIdx.x * kSlotsPerThread;
  int num_rows = 0;
  for (int i = first_slot; i < min(first_slot + kSlotsPerThread, state.num_slots); ++i) {
    StepSlot& slot = state.slots[i];
    if (params.num_drafts == 0) slot.num_drafts = 0;
    if (slot.num_drafts == params.num_drafts && params.num_drafts > 0) {
      slot.drafts[params.num_drafts - 1] = params.sampled[i];
    }
    num_rows += slot.is_active != 0 ? 1 + slot.num_drafts : 0;
  }
  int total = 0;
  int row = exclusive_scan(num_rows, &total);
  for (int i = first_slot; i < min(first_slot + kSlotsPerThread, state.num_slots); ++i) {
    const StepSlot& slot = state.slots[i];
    batch.cu_rows[i] = row;
    batch.base_lens[i] = slot.num_tokens - 1;
    if (slot.is_active == 0) continue;
    for (int j = 0; j <= slot.num_drafts; ++j, ++row) {
      put_row(state, batch, row, i, j == 0 ? slot.tail[kStepTail - 1] : slot.drafts[j - 1],
              slot.num_tokens - 1 + j);
      batch.sample_ids[row] = row;
      batch.samples[row] = sample_after(slot, j);
    }
  }
  if (threadIdx.x == 0) batch.cu_rows[state.num_slots] = total;
  pad_rows(batch, total);
  for (int padding = total + threadIdx.x; padding < batch.max_rows; padding += kThreads) {
    batch.sample_ids[padding] = padding;
    batch.samples[padding] = DeviceSampleRow{};
  }
}

__device__ bool is_stop(const CommitParams& params, const StepSlot& slot, int32_t token) {
  for (int i = slot.stops.begin; i < slot.stops.end; ++i) {
    if (params.token_lists[i] == token) return true;
  }
  return false;
}

// Drafts that are kept: as long as the sample before them is the draft, or a coin says so.
__device__ int num_accepted(const CommitParams& params, const StepSlot& slot,
                            const int32_t* sampled) {
  int accepted = 0;
  while (accepted < slot.num_drafts) {
    const bool keeps = params.accept_rates == nullptr
                           ? sampled[accepted] == slot.drafts[accepted]
                           : step_uniform(slot.sampling.seed, slot.num_tokens - 1, accepted + 1,
                                          1) < params.accept_rates[accepted];
    if (!keeps) break;
    ++accepted;
  }
  return accepted;
}

__device__ void append_token(const CommitParams& params, StepSlot& slot, int32_t token) {
  for (int i = 0; i + 1 < kStepTail; ++i) slot.tail[i] = slot.tail[i + 1];
  slot.tail[kStepTail - 1] = token;
  ++slot.num_tokens;
  if (slot.count_table != nullptr) slot.count_table[token] += 2;
  const bool may_stop = slot.num_tokens - slot.num_prompt_tokens >= slot.min_tokens;
  if ((may_stop && is_stop(params, slot, token)) || slot.num_tokens >= slot.max_num_tokens) {
    slot.is_active = 0;
  }
}

__device__ void commit_slot(const CommitParams& params, StepSlot& slot, const int32_t* sampled,
                            StepReport& report) {
  const int accepted = num_accepted(params, slot, sampled);
  const int root = slot.num_tokens - 1;
  report.num_drafts = slot.num_drafts;
  report.num_accepted = accepted;
  for (int i = 0; i < slot.num_drafts; ++i) report.drafts[i] = slot.drafts[i];
  int emitted = 0;
  while (emitted <= accepted && slot.is_active != 0) {
    const int32_t token = emitted < accepted ? slot.drafts[emitted] : sampled[accepted];
    report.tokens[emitted++] = token;
    append_token(params, slot, token);
  }
  report.num_tokens = emitted;
  // The draft model ran the tokens before the root, the root and all drafts but the last.
  if (slot.num_drafts > 0) slot.num_draft_tokens = root + 1 + min(accepted, slot.num_drafts - 1);
}

__global__ void __launch_bounds__(kThreads) commit_kernel(CommitParams params) {
  ptx::wait_for_previous();
  for (int i = threadIdx.x; i < params.state.num_slots; i += kThreads) {
    StepSlot& slot = params.state.slots[i];
    StepReport& report = params.reports[i];
    if (slot.is_active != 0) {
      commit_slot(params, slot, params.sampled + params.cu_rows[i], report);
    } else {
      report.num_drafts = 0;
      report.num_accepted = 0;
      report.num_tokens = 0;
    }
  }
  if (threadIdx.x == 0) {
    *params.reported_times = {params.times->draft, params.times->verify, ptx::nanoseconds()};
  }
}

__global__ void __launch_bounds__(kThreads) change_slots_kernel(ChangeSlotsParams params) {
  ptx::wait_for_previous();
  for (int i = threadIdx.x; i < params.num_changes; i += kThreads) {
    const SlotChange change = params.changes[i];
    if (change.index == kEndSlot) {
      params.state.slots[change.slot].is_active = 0;
    } else if (change.index == kCountToken) {
      params.state.slots[change.slot].count_table[change.block] = change.count;
    } else {
      params.state.block_tables[static_cast<int64_t>(change.slot) * params.state.max_blocks +
                                change.index] = change.block;
    }
  }
}

constexpr LaunchConfig kOneBlock = {
    .grid = {1}, .block = {kThreads}, .shared_bytes = 0, .overlaps_previous = true};

void draft_rows(Stream& stream, const DraftRowsParams& params) {
  launch("draft_rows", stream, draft_rows_kernel, kOneBlock, params);
}
void verify_rows(Stream& stream, const VerifyRowsParams& params) {
  launch("verify_rows", stream, verify_rows_kernel, kOneBlock, params);
}
void commit(Stream& stream, const CommitParams& params) {
  launch("commit", stream, commit_kernel, kOneBlock, params);
}
void change_slots(Stream& stream, const ChangeSlotsParams& params) {
  launch("change_slots", stream, change_slots_kernel, kOneBlock, params);
}

}  // namespace

StepKernels step_kernels() { return {draft_rows, verify_rows, commit, change_slots}; }

}  // namespace specdec::cuda::SPECDEC_TARGET
