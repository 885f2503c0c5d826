// Commits a step: appends its tokens to the seats and reports. Also applies the host's changes to
// seats.
#include <algorithm>

#include "core/step_rules.h"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_passes.cuh"
#include "cuda/kernels/step_rows.cuh"
#include "cuda/kernels/step_trees.cuh"
#include "cuda/kernels/verify_walk.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

__device__ bool is_stop(const int32_t* token_lists, const StepSeat& seat, int32_t token) {
  for (int i = seat.stops.begin; i < seat.stops.end; ++i) {
    if (token_lists[i] == token) return true;
  }
  return false;
}

__device__ void append_token(const int32_t* token_lists, StepSeat& seat, int32_t token) {
  for (int i = 0; i + 1 < kStepTail; ++i) seat.tail[i] = seat.tail[i + 1];
  seat.tail[kStepTail - 1] = token;
  ++seat.num_tokens;
  if (seat.count_table != nullptr) seat.count_table[token] += 2;
  const bool may_stop = seat.num_tokens - seat.num_prompt_tokens >= seat.min_tokens;
  if ((may_stop && is_stop(token_lists, seat, token)) || seat.num_tokens >= seat.max_num_tokens) {
    seat.is_active = 0;
  }
}

// The slot has read the committed row; accepted drafts wait in their records.
__device__ void advance_state(StepSeatState& state, const int32_t* nodes, int num_accepted) {
  const int32_t first_record = state.first_records[0];
  for (int i = 0; i < num_accepted; ++i) state.pending[i] = first_record + nodes[i] - 1;
  state.num_pending = num_accepted;
  state.first_records[0] = state.first_records[1];
  state.first_records[1] = first_record;
  state.kept_slot = -1;
}

__device__ void commit_seat(const StepParams& params, int index, StepReport& report) {
  const StepMemory& memory = params.memory;
  StepSeat& seat = memory.state.seats[index];
  const SeatDrafts& drafts = memory.state.drafts[index];
  const AcceptedDrafts& all = memory.accepted;
  // Weighing has no result for a seat without drafts, which emits the sampled token.
  const bool is_plain = memory.is_weighed != 0 && drafts.num_drafts == 0;
  const int num_accepted = is_plain ? 0 : all.num_accepted[index];
  const int32_t* tokens = is_plain ? memory.sampled + memory.batch.cu_rows[index]
                                   : all.tokens + static_cast<int64_t>(index) * (all.max_depth + 1);
  const int32_t* nodes = all.nodes + static_cast<int64_t>(index) * all.max_depth;
  report.num_drafts = drafts.num_drafts;
  report.num_accepted = num_accepted;
  report.is_tree = drafts.is_tree;
  for (int i = 0; i < drafts.num_drafts; ++i) {
    report.drafts[i] = drafts.tokens[i];
    if (drafts.is_tree != 0) report.parents[i] = drafts.parents[i];
  }
  for (int i = 0; i < num_accepted; ++i) report.accepted[i] = nodes[i];
  // A draft head with a reduced vocabulary may draft nothing, but its KV was written.
  if (params.num_passes > 0 && drafts.depth_limit > 0) {
    const bool grew_tree = params.num_passes > 0 && memory.growths.shape.width > 1;
    seat.num_seen = num_seen_after(memory.draft_kind, seat.num_tokens, drafts.num_drafts,
                                   num_accepted, grew_tree);
  }
  int num_emitted = 0;
  while (num_emitted <= num_accepted && seat.is_active != 0) {
    const int32_t token = tokens[num_emitted];
    report.tokens[num_emitted++] = token;
    append_token(memory.token_lists, seat, token);
  }
  report.num_tokens = num_emitted;
  if (memory.state.states != nullptr) {
    advance_state(memory.state.states[index], nodes, seat.is_active != 0 ? num_accepted : 0);
  }
}

// Threads of a block that walks trees first, a warp per tree.
constexpr int kWalkThreads = 512;

template <bool kWalks>
__global__ void __launch_bounds__(kWalks ? kWalkThreads : kStepThreads, 1)
    commit_kernel(StepParams params, WalkParams walk) {
  constexpr int kThreads = kWalks ? kWalkThreads : kStepThreads;
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepMemory& memory = params.memory;
  if constexpr (kWalks) {
    for (int i = threadIdx.x / 32; i < walk.trees.num_requests; i += kThreads / 32) {
      walk_tree(walk, i);
    }
    __syncthreads();
  }
  const uint64_t step = *memory.num_ended;
  const int turn = static_cast<int>(step % kStepsUnderWay);
  for (int i = threadIdx.x; i < memory.state.num_seats; i += kThreads) {
    StepReport& report = memory.reports[turn][i];
    if (memory.state.seats[i].is_active != 0) {
      commit_seat(params, i, report);
    } else {
      report.num_drafts = 0;
      report.num_accepted = 0;
      report.num_tokens = 0;
    }
  }
  __syncthreads();  // all have read num_ended
  if (threadIdx.x == 0) {
    *memory.ended_times[turn] = {memory.times->draft, memory.times->verify, ptx::nanoseconds(),
                                 step};
    *memory.num_ended = step + 1;
  }
}

// A thread makes at most one change of each kind.
__global__ void __launch_bounds__(kStepThreads) change_seats_kernel(ChangeSeatsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepState& state = params.state;
  const int i = static_cast<int>(blockIdx.x) * kStepThreads + static_cast<int>(threadIdx.x);
  if (i < params.num_ended) state.seats[params.ended[i]].is_active = 0;
  if (i < params.num_blocks) {
    const NewBlock added = params.blocks[i];
    const int64_t entry = static_cast<int64_t>(added.seat) * state.max_blocks + added.index;
    state.block_tables[entry] = added.block;
    if (params.span_tables != nullptr) params.span_tables[entry] = added.block;
  }
  if (i < params.num_kept_slots) {
    state.states[params.kept_slots[i].seat].kept_slot = params.kept_slots[i].slot;
  }
  if (i < params.num_counts) {
    const SeatTokenCount change = params.counts[i];
    state.seats[change.seat].count_table[change.token] = change.count;
  }
}

void commit(Stream& stream, const StepParams& params) {
  launch("commit", stream, commit_kernel<false>, kOneStepBlock, params, WalkParams{});
}
void walk_and_commit(Stream& stream, const StepParams& params, const WalkParams& walk) {
  LaunchConfig config = kOneStepBlock;
  config.block.x = kWalkThreads;
  launch("walk_and_commit", stream, commit_kernel<true>, config, params, walk);
}
void change_seats(Stream& stream, const ChangeSeatsParams& params) {
  const int num_changes =
      std::max({params.num_ended, params.num_blocks, params.num_kept_slots, params.num_counts});
  if (num_changes == 0) return;
  LaunchConfig config = kOneStepBlock;
  config.grid.x = static_cast<unsigned>((num_changes + kStepThreads - 1) / kStepThreads);
  launch("change_seats", stream, change_seats_kernel, config, params);
}

}  // namespace

StepKernels step_kernels() {
  return {.make_rows = make_rows,
          .grow_trees = grow_trees,
          .commit = commit,
          .walk_and_commit = walk_and_commit,
          .change_seats = change_seats};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
