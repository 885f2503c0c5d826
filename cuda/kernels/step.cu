#include <algorithm>

#include "core/step_rules.h"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_rows.cuh"
#include "cuda/kernels/step_trees.cuh"
#include "cuda/kernels/verify_walk.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// A chain gets its draft number `pass`, unless the seat's chain is shorter.
__device__ __forceinline__ void add_to_chain(SeatDrafts& drafts, int pass, int32_t token) {
  if (drafts.depth_limit < pass) return;
  drafts.tokens[pass - 1] = token;
  drafts.num_drafts = pass;
}

__global__ void __launch_bounds__(kStepThreads, 1) draft_rows_kernel(StepParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepMemory& memory = params.memory;
  const StepState& state = memory.state;
  const StepBatch& batch = memory.batch;
  const TreeShape& shape = memory.growths.shape;
  const auto unseen = [kind = memory.draft_kind](const StepSeat& seat) {
    return first_unseen(kind, seat.num_tokens, seat.num_seen);
  };
  if (threadIdx.x == 0 && params.pass == 0) memory.times->draft = ptx::nanoseconds();
  const SeatRange mine = seats_of_thread(state.num_seats);
  int num_rows = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
    const StepSeat& seat = state.seats[i];
    SeatDrafts& drafts = state.drafts[i];
    if (params.pass == 0) {
      const int max_depth = seat.is_active != 0 ? min(params.num_passes, seat.max_depth) : 0;
      const bool has_rows = unseen(seat) < seat.num_tokens;
      drafts.depth_limit =
          has_rows ? draft_depth_limit(max_depth, seat.num_tokens, seat.max_num_tokens) : 0;
      drafts.num_drafts = 0;
      drafts.is_tree = 0;
    } else {
      add_to_chain(drafts, params.pass, memory.sampled[i]);
    }
    if (drafts.depth_limit > params.pass) {
      num_rows += params.pass == 0 ? seat.num_tokens - unseen(seat) : 1;
    }
  }
  StepCounts all;
  int row = exclusive_scan({num_rows, 0}, &all).rows;
  const int total = all.rows;
  for (int i = mine.begin; i < mine.end; ++i) {
    const StepSeat& seat = state.seats[i];
    const SeatDrafts& drafts = state.drafts[i];
    batch.cu_rows[i] = row;
    batch.base_lens[i] = 0;
    batch.sample_ids[i] = 0;
    batch.samples[i] = DeviceSampleRow{};
    if (drafts.depth_limit <= params.pass) continue;
    if (params.pass == 0) {
      const int first = unseen(seat);
      batch.base_lens[i] = first;
      for (int position = first; position < seat.num_tokens; ++position, ++row) {
        put_row(state, batch, row, i, seat.tail[kStepTail - (seat.num_tokens - position)], position,
                position);
        const bool is_root = position + 1 == seat.num_tokens;
        put_head_row(state, batch, row, i, position - 1, is_root ? position : -1);
      }
    } else {
      const int position = seat.num_tokens - 1 + params.pass;
      batch.base_lens[i] = position;
      put_row(state, batch, row, i, drafts.tokens[params.pass - 1], position, position);
      put_head_row(state, batch, row++, i, position - 1, position);
    }
    batch.sample_ids[i] = row - 1;
    DeviceSampleRow sample = draft_after(seat, drafts.tokens, params.pass, memory);
    if (memory.distributions != nullptr && !is_greedy(seat.sampling.temperature)) {
      sample.noise_stream = draft_noise_stream(seat.num_tokens - 1, /*drafter=*/0);
      sample.distribution =
          memory.distributions +
          (static_cast<int64_t>(i) * shape.max_nodes + params.pass) * memory.vocab_size;
    }
    batch.samples[i] = sample;
  }
  if (threadIdx.x == 0) batch.cu_rows[state.num_seats] = total;
  pad_rows(batch, total);
}

__device__ __forceinline__ int parent_of(const SeatDrafts& drafts, int node) {
  return drafts.is_tree != 0 && node > 0 ? drafts.parents[node - 1] : node - 1;
}

__device__ __forceinline__ void put_node(const StepMemory& memory, int index, int node, int row) {
  const StepSeat& seat = memory.state.seats[index];
  const SeatDrafts& drafts = memory.state.drafts[index];
  const StepBatch& batch = memory.batch;
  const StepTrees& trees = memory.trees;
  const int root = seat.num_tokens - 1;
  uint64_t mask = 1;
  int depth = 0;
  for (int at = node; at > 0; at = parent_of(drafts, at)) {
    mask |= uint64_t{1} << at;
    ++depth;
  }
  const int32_t token = node == 0 ? seat.tail[kStepTail - 1] : drafts.tokens[node - 1];
  put_row(memory.state, batch, row, index, token, root + depth, root + node);
  trees.parents[row] = parent_of(drafts, node);
  trees.masks[row] = mask;

  // A chain's drafts are the path themselves. Paths are read for penalties only.
  const int32_t* path = drafts.tokens;
  if (drafts.is_tree != 0 && seat.count_table != nullptr) {
    int32_t* own = trees.paths + static_cast<int64_t>(row) * kMaxStepDrafts;
    int above = depth;
    for (int at = node; at > 0; at = parent_of(drafts, at)) own[--above] = drafts.tokens[at - 1];
    path = own;
  }
  DeviceSampleRow sample = sample_after(seat, path, depth);
  if (memory.is_weighed != 0 && drafts.num_drafts > 0) {
    sample.distribution = trees.targets + static_cast<int64_t>(row) * memory.vocab_size;
  }
  if (memory.masks != nullptr && drafts.masks.begin < drafts.masks.end) {
    const auto mask = static_cast<int64_t>(drafts.masks.begin) + node;
    sample.allowed_mask = memory.masks + mask * memory.num_mask_words;
    sample.num_mask_words = memory.num_mask_words;
  }
  batch.sample_ids[row] = row;
  batch.samples[row] = sample;
}

// The attempt that made draft node - 1 of seat `index`.
__device__ __forceinline__ void put_attempt(const StepMemory& memory, int index, int node) {
  const bool was_drawn = !is_greedy(memory.state.seats[index].sampling.temperature);
  const bool has_distribution = memory.distributions != nullptr && was_drawn;
  const int first_distribution = index * memory.growths.shape.max_nodes;
  memory.trees.attempts[memory.trees.cu_attempts[index] + node - 1] = {
      .parent = parent_of(memory.state.drafts[index], node),
      .child = node,
      .distribution = has_distribution ? first_distribution + node - 1 : -1};
}

// The seat that a row belongs to: the last one whose first row is not past it. Earlier seats with
// the same first row have no rows.
__device__ __forceinline__ int seat_of_row(const int32_t* first_rows, int num_seats, int row) {
  int low = 0;
  int high = num_seats;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_rows[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kStepThreads, 1) verify_rows_kernel(StepParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  int32_t* first_rows = reinterpret_cast<int32_t*>(shared_bytes);  // [num_seats]
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepMemory& memory = params.memory;
  const StepState& state = memory.state;
  const StepBatch& batch = memory.batch;
  const StepTrees& trees = memory.trees;
  const bool has_drafts = params.num_passes > 0 || params.has_host_drafts != 0;
  const bool has_chains = params.num_passes > 0 && memory.growths.shape.width == 1;
  if (threadIdx.x == 0) memory.times->verify = ptx::nanoseconds();
  const SeatRange mine = seats_of_thread(state.num_seats);
  int num_rows = 0;
  int num_drafts = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
    const bool is_active = state.seats[i].is_active != 0;
    SeatDrafts& drafts = state.drafts[i];
    if (!has_drafts || !is_active) {
      drafts.num_drafts = 0;
      drafts.is_tree = 0;
    } else if (has_chains) {
      add_to_chain(drafts, params.num_passes, memory.sampled[i]);
    }
    num_rows += is_active ? 1 + drafts.num_drafts : 0;
    num_drafts += drafts.num_drafts;
  }
  StepCounts all;
  StepCounts before = exclusive_scan({num_rows, num_drafts}, &all);
  for (int i = mine.begin; i < mine.end; ++i) {
    const StepSeat& seat = state.seats[i];
    const SeatDrafts& drafts = state.drafts[i];
    first_rows[i] = batch.cu_rows[i] = before.rows;
    batch.base_lens[i] = seat.num_tokens - 1;
    trees.is_tree[i] = drafts.is_tree != 0;
    trees.seeds[i] = seat.sampling.seed;
    trees.cu_attempts[i] = before.drafts;
    before.rows += seat.is_active != 0 ? 1 + drafts.num_drafts : 0;
    before.drafts += drafts.num_drafts;
  }
  const int total = all.rows;
  if (threadIdx.x == 0) {
    batch.cu_rows[state.num_seats] = total;
    trees.cu_attempts[state.num_seats] = all.drafts;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < total; row += kStepThreads) {
    const int index = seat_of_row(first_rows, state.num_seats, row);
    const int node = row - first_rows[index];
    put_node(memory, index, node, row);
    if (node > 0) put_attempt(memory, index, node);
  }
  pad_rows(batch, total);
  for (int padding = total + threadIdx.x; padding < batch.max_rows; padding += kStepThreads) {
    batch.sample_ids[padding] = padding;
    batch.samples[padding] = DeviceSampleRow{};
  }
}

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

__device__ void commit_seat(const StepParams& params, int index, StepReport& report) {
  const StepMemory& memory = params.memory;
  StepSeat& seat = memory.state.seats[index];
  const SeatDrafts& drafts = memory.state.drafts[index];
  const AcceptedDrafts& all = memory.accepted;
  // Weighing says nothing of a seat without drafts, which emits what was sampled.
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
  // Of a head that scores part of the vocabulary there may be no draft, and still it ran.
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
}

// Of a block that walks trees first, a warp each.
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
  __syncthreads();  // all know the turn
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
    state.block_tables[static_cast<int64_t>(added.seat) * state.max_blocks + added.index] =
        added.block;
  }
  if (i < params.num_counts) {
    const SeatTokenCount change = params.counts[i];
    state.seats[change.seat].count_table[change.token] = change.count;
  }
}

void draft_rows(Stream& stream, const StepParams& params) {
  launch("draft_rows", stream, draft_rows_kernel, kOneStepBlock, params);
}
void verify_rows(Stream& stream, const StepParams& params) {
  LaunchConfig config = kOneStepBlock;
  config.shared_bytes = sizeof(int32_t) * static_cast<size_t>(params.memory.state.num_seats);
  launch("verify_rows", stream, verify_rows_kernel, config, params);
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
  const int num_changes = std::max({params.num_ended, params.num_blocks, params.num_counts});
  if (num_changes == 0) return;
  LaunchConfig config = kOneStepBlock;
  config.grid.x = static_cast<unsigned>((num_changes + kStepThreads - 1) / kStepThreads);
  launch("change_seats", stream, change_seats_kernel, config, params);
}

}  // namespace

StepKernels step_kernels() {
  return {.draft_rows = draft_rows,
          .tree_rows = tree_rows,
          .grow_trees = grow_trees,
          .verify_rows = verify_rows,
          .commit = commit,
          .walk_and_commit = walk_and_commit,
          .change_seats = change_seats};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
