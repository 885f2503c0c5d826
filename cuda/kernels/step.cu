#include "cuda/common/philox.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_rows.cuh"
#include "cuda/kernels/step_trees.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// Whether its tokens are drawn; the most likely one is taken otherwise.
__device__ bool is_drawn(const StepSlot& slot) { return slot.sampling.temperature >= 1e-5f; }

// draft_noise_stream of speculation/verification.h, of the first drafter.
__device__ uint32_t draft_noise_stream(int root_position) {
  constexpr uint64_t kMaxDrafters = 16;
  constexpr uint64_t kStreams = 0xFFFFFFFEu;
  const uint64_t step = static_cast<uint64_t>(root_position) * kMaxDrafters;
  const uint64_t folded = (step & 0xFFFFFFFFu) + 2 * (step >> 32);  // 2^32 is 2 modulo kStreams
  return static_cast<uint32_t>(1 + (folded >= kStreams ? folded - kStreams : folded));
}

__global__ void __launch_bounds__(kStepThreads, 1) draft_rows_kernel(DraftRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepSlots& state = params.state;
  const StepBatch& batch = params.batch;
  if (threadIdx.x == 0 && params.started != nullptr) *params.started = ptx::nanoseconds();
  const SlotRange mine = slots_of_thread(state.num_slots);
  int num_rows = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
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
  StepCounts all;
  int row = exclusive_scan({num_rows, 0}, &all).rows;
  const int total = all.rows;
  for (int i = mine.begin; i < mine.end; ++i) {
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
                position, position);
      }
    } else {
      const int position = slot.num_tokens - 1 + params.pass;
      batch.base_lens[i] = position;
      put_row(state, batch, row++, i, slot.drafts[params.pass - 1], position, position);
    }
    batch.sample_ids[i] = row - 1;
    DeviceSampleRow sample = sample_after(slot, slot.drafts, params.pass);
    sample.want_logprobs = 0;
    sample.num_logprobs = 0;
    sample.num_candidates = params.num_candidates;
    if (params.argmax != 0) sample.temperature = 0.0f;
    if (params.distributions != nullptr && is_drawn(slot)) {
      sample.noise_stream = draft_noise_stream(slot.num_tokens - 1);
      sample.distribution =
          params.distributions +
          (static_cast<int64_t>(i) * params.max_drafts + params.pass) * params.vocab_size;
    }
    batch.samples[i] = sample;
  }
  if (threadIdx.x == 0) batch.cu_rows[state.num_slots] = total;
  pad_rows(batch, total);
}

// Node 0 is the root, node i + 1 the i-th draft.
__device__ __forceinline__ int parent_of(const StepSlot& slot, int node) {
  return slot.is_tree != 0 && node > 0 ? slot.parents[node - 1] : node - 1;
}

__device__ __forceinline__ void put_node(const VerifyRowsParams& params, int index, int node,
                                         int row) {
  const StepSlot& slot = params.state.slots[index];
  const StepBatch& batch = params.batch;
  const StepTrees& trees = params.trees;
  const int root = slot.num_tokens - 1;
  uint64_t mask = 1;
  int depth = 0;
  for (int at = node; at > 0; at = parent_of(slot, at)) {
    mask |= uint64_t{1} << at;
    ++depth;
  }
  const int32_t token = node == 0 ? slot.tail[kStepTail - 1] : slot.drafts[node - 1];
  put_row(params.state, batch, row, index, token, root + depth, root + node);
  trees.parents[row] = parent_of(slot, node);
  trees.masks[row] = mask;

  const int32_t* path = slot.drafts;
  if (slot.is_tree != 0 && slot.count_table != nullptr) {  // nothing else reads it
    int32_t* own = trees.paths + static_cast<int64_t>(row) * kMaxStepDrafts;
    int place = depth;
    for (int at = node; at > 0; at = parent_of(slot, at)) own[--place] = slot.drafts[at - 1];
    path = own;
  }
  DeviceSampleRow sample = sample_after(slot, path, depth);
  if (trees.targets != nullptr && slot.num_drafts > 0) {
    sample.distribution = trees.targets + static_cast<int64_t>(row) * trees.vocab_size;
  }
  batch.sample_ids[row] = row;
  batch.samples[row] = sample;
}

// The try that fell on a draft.
__device__ __forceinline__ void put_attempt(const StepTrees& trees, const StepSlot& slot, int index,
                                            int node) {
  const bool has_distribution = trees.has_draft_distributions != 0 && is_drawn(slot);
  trees.attempts[trees.cu_attempts[index] + node - 1] = {
      .parent = parent_of(slot, node),
      .child = node,
      .distribution = has_distribution ? index * trees.max_drafts + node - 1 : -1};
}

// The last slot whose first row is not past `row`: those before it that start there have none.
__device__ __forceinline__ int slot_of_row(const int32_t* first_rows, int num_slots, int row) {
  int low = 0;
  int high = num_slots;
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

__global__ void __launch_bounds__(kStepThreads, 1) verify_rows_kernel(VerifyRowsParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  int32_t* first_rows = reinterpret_cast<int32_t*>(shared_bytes);  // [num_slots]
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepSlots& state = params.state;
  const StepBatch& batch = params.batch;
  const StepTrees& trees = params.trees;
  if (threadIdx.x == 0) *params.started = ptx::nanoseconds();
  const SlotRange mine = slots_of_thread(state.num_slots);
  int num_rows = 0;
  int num_drafts = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
    StepSlot& slot = state.slots[i];
    if (params.num_drafts >= 0) slot.is_tree = 0;
    if (params.num_drafts == 0 || slot.is_active == 0) slot.num_drafts = 0;
    if (params.num_drafts > 0 && slot.num_drafts == params.num_drafts) {
      slot.drafts[params.num_drafts - 1] = params.sampled[i];
    }
    num_rows += slot.is_active != 0 ? 1 + slot.num_drafts : 0;
    num_drafts += slot.num_drafts;
  }
  StepCounts all;
  StepCounts before = exclusive_scan({num_rows, num_drafts}, &all);
  for (int i = mine.begin; i < mine.end; ++i) {
    const StepSlot& slot = state.slots[i];
    first_rows[i] = batch.cu_rows[i] = before.rows;
    batch.base_lens[i] = slot.num_tokens - 1;
    trees.is_tree[i] = slot.is_tree != 0;
    trees.seeds[i] = slot.sampling.seed;
    trees.cu_attempts[i] = before.drafts;
    before.rows += slot.is_active != 0 ? 1 + slot.num_drafts : 0;
    before.drafts += slot.num_drafts;
  }
  const int total = all.rows;
  if (threadIdx.x == 0) {
    batch.cu_rows[state.num_slots] = total;
    trees.cu_attempts[state.num_slots] = all.drafts;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < total; row += kStepThreads) {
    const int index = slot_of_row(first_rows, state.num_slots, row);
    const int node = row - first_rows[index];
    put_node(params, index, node, row);
    if (node > 0) put_attempt(trees, state.slots[index], index, node);
  }
  pad_rows(batch, total);
  for (int padding = total + threadIdx.x; padding < batch.max_rows; padding += kStepThreads) {
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

__device__ void commit_slot(const CommitParams& params, int index, StepReport& report) {
  StepSlot& slot = params.state.slots[index];
  const AcceptedDrafts& all = params.accepted;
  const bool is_plain = params.is_weighed != 0 && slot.num_drafts == 0;
  const int accepted = is_plain ? 0 : all.num_accepted[index];
  const int32_t* tokens = is_plain ? params.sampled + params.cu_rows[index]
                                   : all.tokens + static_cast<int64_t>(index) * (all.max_depth + 1);
  const int32_t* nodes = all.nodes + static_cast<int64_t>(index) * all.max_depth;
  const int root = slot.num_tokens - 1;
  report.num_drafts = slot.num_drafts;
  report.num_accepted = accepted;
  report.is_tree = slot.is_tree;
  for (int i = 0; i < slot.num_drafts; ++i) {
    report.drafts[i] = slot.drafts[i];
    if (slot.is_tree != 0) report.parents[i] = slot.parents[i];
  }
  for (int i = 0; i < accepted; ++i) report.nodes[i] = nodes[i];
  int emitted = 0;
  while (emitted <= accepted && slot.is_active != 0) {
    const int32_t token = tokens[emitted];
    report.tokens[emitted++] = token;
    append_token(params, slot, token);
  }
  report.num_tokens = emitted;
  // The draft model ran the tokens before the root, the root and all drafts of a chain but the
  // last.
  const int num_kept =
      params.grew_trees != 0 ? max(0, accepted - 1) : min(accepted, slot.num_drafts - 1);
  if (slot.num_drafts > 0) slot.num_draft_tokens = root + 1 + num_kept;
}

__global__ void __launch_bounds__(kStepThreads, 1) commit_kernel(CommitParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  for (int i = threadIdx.x; i < params.state.num_slots; i += kStepThreads) {
    StepReport& report = params.reports[i];
    if (params.state.slots[i].is_active != 0) {
      commit_slot(params, i, report);
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

__global__ void __launch_bounds__(kStepThreads, 1) set_drafts_kernel(SetDraftsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  for (int i = threadIdx.x; i < params.state.num_slots; i += kStepThreads) {
    params.state.slots[i].num_drafts = 0;
    params.state.slots[i].is_tree = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_drafted; i += kStepThreads) {
    const SlotDrafts& drafts = params.drafts[i];
    StepSlot& slot = params.state.slots[drafts.slot];
    slot.num_drafts = drafts.num_drafts;
    slot.is_tree = drafts.is_tree;
    for (int j = 0; j < drafts.num_drafts; ++j) {
      slot.drafts[j] = params.tokens[drafts.first + j];
      slot.parents[j] = params.parents[drafts.first + j];
    }
  }
}

__global__ void __launch_bounds__(kStepThreads, 1) change_slots_kernel(ChangeSlotsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  for (int i = threadIdx.x; i < params.num_changes; i += kStepThreads) {
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

void draft_rows(Stream& stream, const DraftRowsParams& params) {
  launch("draft_rows", stream, draft_rows_kernel, kOneStepBlock, params);
}
void verify_rows(Stream& stream, const VerifyRowsParams& params) {
  LaunchConfig config = kOneStepBlock;
  config.shared_bytes = sizeof(int32_t) * static_cast<size_t>(params.state.num_slots);
  launch("verify_rows", stream, verify_rows_kernel, config, params);
}
void commit(Stream& stream, const CommitParams& params) {
  launch("commit", stream, commit_kernel, kOneStepBlock, params);
}
void set_drafts(Stream& stream, const SetDraftsParams& params) {
  launch("set_drafts", stream, set_drafts_kernel, kOneStepBlock, params);
}
void change_slots(Stream& stream, const ChangeSlotsParams& params) {
  launch("change_slots", stream, change_slots_kernel, kOneStepBlock, params);
}

}  // namespace

StepKernels step_kernels() {
  return {.draft_rows = draft_rows,
          .tree_rows = tree_rows,
          .grow_trees = grow_trees,
          .verify_rows = verify_rows,
          .commit = commit,
          .set_drafts = set_drafts,
          .change_slots = change_slots};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
