// Makes the rows of a pass from the state of the requests.
#include "core/step_rules.h"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_passes.cuh"
#include "cuda/kernels/step_rows.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// Adds draft number `pass` to a chain, unless the seat's chain is shorter.
__device__ __forceinline__ void add_to_chain(SeatDrafts& drafts, int pass, int32_t token) {
  if (drafts.depth_limit < pass) return;
  drafts.tokens[pass - 1] = token;
  drafts.num_drafts = pass;
}

__device__ __forceinline__ int first_unseen_of(const StepParams& params, const StepSeat& seat) {
  return first_unseen(params.memory.draft_kind, seat.num_tokens, seat.num_seen);
}

// How deep the draft model may draft for the seat in this step.
__device__ __forceinline__ int depth_limit_of(const StepParams& params, const StepSeat& seat) {
  const int max_depth = seat.is_active != 0 ? min(params.num_passes, seat.max_depth) : 0;
  if (first_unseen_of(params, seat) >= seat.num_tokens) return 0;
  return draft_depth_limit(max_depth, seat.num_tokens, seat.max_num_tokens);
}

// Before the first pass of a step.
__device__ __forceinline__ void begin_drafts(const StepParams& params, int index) {
  SeatDrafts& drafts = params.memory.state.drafts[index];
  drafts.depth_limit = depth_limit_of(params, params.memory.state.seats[index]);
  drafts.num_drafts = 0;
  drafts.is_tree = 0;
}

// The sample of a chain's next draft, from pass `params.pass`.
__device__ __forceinline__ DeviceSampleRow chain_sample(const StepParams& params, int index) {
  const StepMemory& memory = params.memory;
  const StepSeat& seat = memory.state.seats[index];
  const int32_t* drafts = memory.state.drafts[index].tokens;
  DeviceSampleRow sample = draft_after(seat, drafts, params.pass, memory);
  if (memory.distributions != nullptr && !is_greedy(seat.sampling.temperature)) {
    const int max_nodes = memory.growths.shape.max_nodes;
    sample.noise_stream = draft_noise_stream(seat.num_tokens - 1, /*drafter=*/0);
    sample.distribution =
        memory.distributions +
        (static_cast<int64_t>(index) * max_nodes + params.pass) * memory.vocab_size;
  }
  return sample;
}

// Puts the row of a draft head that reads the target's KV (DraftModelKind::kTargetKvDraftHead). For
// the batch, the last token that the target has read is the root of a tree, of which the row sees
// the root alone. `offset`: of the slot where its state is kept, from the last token's; likewise of
// its parent's.
__device__ __forceinline__ void put_context_row(const StepMemory& memory, int row, int index,
                                                int32_t token, int parent_offset, int offset) {
  const int position = memory.state.seats[index].num_tokens - 1;
  put_row(memory.state, memory.batch, row, index, token, position, position + offset);
  put_draft_head_row(memory.state, memory.batch, row, index, position + parent_offset,
                     position + offset);
  memory.trees.masks[row] = 1;
}

// A pass of the draft model: in pass 0 over the committed tokens that it has not seen, in later
// passes of a chain over the draft of the pass before.
struct DraftPass {
  static constexpr const char* kName = "draft_rows";

  // Valid once the seat has its depth_limit.
  static __device__ __forceinline__ int num_rows_of(const StepParams& params, int index) {
    if (params.memory.state.drafts[index].depth_limit <= params.pass) return 0;
    const StepSeat& seat = params.memory.state.seats[index];
    return params.pass == 0 ? seat.num_tokens - first_unseen_of(params, seat) : 1;
  }

  static __device__ __forceinline__ void make(const StepParams& params, unsigned char*) {
    const StepMemory& memory = params.memory;
    const StepState& state = memory.state;
    const StepBatch& batch = memory.batch;
    if (threadIdx.x == 0 && params.pass == 0) memory.times->draft = ptx::nanoseconds();
    const SeatRange mine = seats_of_thread(state.num_seats);
    int num_rows = 0;
    for (int i = mine.begin; i < mine.end; ++i) {
      if (params.pass == 0) {
        begin_drafts(params, i);
      } else {
        add_to_chain(state.drafts[i], params.pass, memory.sampled[i]);
      }
      num_rows += num_rows_of(params, i);
    }
    StepCounts all;
    int row = exclusive_scan({.rows = num_rows}, &all).rows;
    const int total = all.rows;
    for (int i = mine.begin; i < mine.end; ++i) {
      const StepSeat& seat = state.seats[i];
      const SeatDrafts& drafts = state.drafts[i];
      batch.cu_rows[i] = row;
      batch.base_lens[i] = 0;
      batch.sample_ids[i] = 0;
      batch.samples[i] = DeviceSampleRow{};
      if (drafts.depth_limit <= params.pass) continue;
      if (memory.draft_kind == DraftModelKind::kTargetKvDraftHead) {
        const int32_t token =
            params.pass == 0 ? seat.tail[kStepTail - 1] : drafts.tokens[params.pass - 1];
        batch.base_lens[i] = seat.num_tokens - 2;
        memory.trees.is_tree[i] = 1;
        put_context_row(memory, row++, i, token, params.pass - 1, params.pass);
      } else if (params.pass == 0) {
        const int first = first_unseen_of(params, seat);
        batch.base_lens[i] = first;
        for (int position = first; position < seat.num_tokens; ++position, ++row) {
          put_row(state, batch, row, i, seat.tail[kStepTail - (seat.num_tokens - position)],
                  position, position);
          const bool is_root = position + 1 == seat.num_tokens;
          put_draft_head_row(state, batch, row, i, position - 1, is_root ? position : -1);
        }
      } else {
        const int position = seat.num_tokens - 1 + params.pass;
        batch.base_lens[i] = position;
        put_row(state, batch, row, i, drafts.tokens[params.pass - 1], position, position);
        put_draft_head_row(state, batch, row++, i, position - 1, position);
      }
      batch.sample_ids[i] = row - 1;
      batch.samples[i] = chain_sample(params, i);
    }
    if (threadIdx.x == 0) batch.cu_rows[state.num_seats] = total;
    pad_rows(batch, total);
  }
};

// The tokens from the root's child to a node of depth `depth`.
__device__ __forceinline__ void put_path(const StepTreeNode* nodes, int node, int depth,
                                         int32_t* path) {
  for (int i = depth - 1; i >= 0; --i) {
    path[i] = nodes[node - 1].token;
    node = nodes[node - 1].parent;
  }
}

// The sample that continues entry `entry` of a seat's frontier, from row `row` of the pass.
__device__ __forceinline__ void put_frontier_sample(const StepParams& params, int index, int entry,
                                                    int row) {
  const StepMemory& memory = params.memory;
  const StepSeat& seat = memory.state.seats[index];
  const StepGrowths& growths = memory.growths;
  const int64_t sample_at = static_cast<int64_t>(index) * growths.shape.width + entry;
  const StepTreeNode* nodes = growths.nodes + static_cast<int64_t>(index) * growths.capacity;
  int32_t* path = memory.trees.paths + sample_at * kMaxStepDrafts;
  // Paths are read for penalties only.
  if (seat.count_table != nullptr) {
    put_path(nodes, growths.frontiers[sample_at].node, params.pass, path);
  }
  memory.batch.sample_ids[sample_at] = row;
  memory.batch.samples[sample_at] = draft_after(seat, path, params.pass, memory);
}

// Puts entry `entry` of a seat's frontier into row `row` of the pass.
__device__ __forceinline__ void put_frontier(const StepParams& params, int index, int entry,
                                             int row) {
  const StepMemory& memory = params.memory;
  const StepSeat& seat = memory.state.seats[index];
  const StepGrowths& growths = memory.growths;
  const StepBatch& batch = memory.batch;
  const int64_t sample_at = static_cast<int64_t>(index) * growths.shape.width + entry;
  StepFrontier& frontier = growths.frontiers[sample_at];
  StepTreeNode* nodes = growths.nodes + static_cast<int64_t>(index) * growths.capacity;
  const int root = seat.num_tokens - 1;
  const int kv_offset = growths.num_kv_slots[index] - growths.seats[index].num_frontier + entry;
  nodes[frontier.node - 1].kv_offset = kv_offset;
  const int parent = nodes[frontier.node - 1].parent;
  const int parent_offset = parent == 0 ? 0 : nodes[parent - 1].kv_offset;
  const int32_t token = nodes[frontier.node - 1].token;
  if (memory.draft_kind == DraftModelKind::kTargetKvDraftHead) {
    put_context_row(memory, row, index, token, parent_offset, kv_offset);
  } else {
    const uint64_t mask = frontier.mask | uint64_t{1} << kv_offset;
    frontier.mask = mask;
    memory.trees.masks[row] = mask;
    put_row(memory.state, batch, row, index, token, root + params.pass, root + kv_offset);
    put_draft_head_row(memory.state, batch, row, index, root + parent_offset, root + kv_offset);
  }
  put_frontier_sample(params, index, entry, row);
}

// A pass of the draft model over the frontiers of growing trees.
struct TreePass {
  static constexpr const char* kName = "tree_rows";

  static __device__ __forceinline__ void make(const StepParams& params, unsigned char*) {
    const StepMemory& memory = params.memory;
    const StepState& state = memory.state;
    const StepBatch& batch = memory.batch;
    const StepGrowths& growths = memory.growths;
    const SeatRange mine = seats_of_thread(state.num_seats);
    int num_rows = 0;
    for (int i = mine.begin; i < mine.end; ++i) num_rows += growths.seats[i].num_frontier;
    StepCounts all;
    int row = exclusive_scan({.rows = num_rows}, &all).rows;
    for (int i = mine.begin; i < mine.end; ++i) {
      const int num_frontier = growths.seats[i].num_frontier;
      batch.cu_rows[i] = row;
      const bool reads_target_kv = memory.draft_kind == DraftModelKind::kTargetKvDraftHead;
      batch.base_lens[i] = state.seats[i].num_tokens - (reads_target_kv ? 2 : 1);
      memory.trees.is_tree[i] = 1;
      growths.num_kv_slots[i] += num_frontier;
      row += num_frontier;
    }
    if (threadIdx.x == 0) batch.cu_rows[state.num_seats] = all.rows;
    __syncthreads();
    for (int i = threadIdx.x; i < state.num_seats * growths.shape.width; i += kStepThreads) {
      const int seat = i / growths.shape.width;
      const int entry = i % growths.shape.width;
      if (entry < growths.seats[seat].num_frontier) {
        put_frontier(params, seat, entry, batch.cu_rows[seat] + entry);
      } else {
        batch.sample_ids[i] = 0;
        batch.samples[i] = DeviceSampleRow{};
      }
    }
    pad_rows(batch, all.rows);
  }
};

// The pass of a head that drafts over masks over the committed tokens that it has not seen, without
// the last: their features make its keys and values.
struct ContextPass {
  static constexpr const char* kName = "context_rows";

  static __device__ __forceinline__ void make(const StepParams& params, unsigned char*) {
    const StepState& state = params.memory.state;
    const StepBatch& batch = params.memory.batch;
    if (threadIdx.x == 0) params.memory.times->draft = ptx::nanoseconds();
    const SeatRange mine = seats_of_thread(state.num_seats);
    const auto num_rows_of = [&](int i) {
      if (state.drafts[i].depth_limit == 0) return 0;
      const StepSeat& seat = state.seats[i];
      return seat.num_tokens - 1 - first_unseen_of(params, seat);
    };
    int num_rows = 0;
    for (int i = mine.begin; i < mine.end; ++i) {
      begin_drafts(params, i);
      num_rows += num_rows_of(i);
    }
    StepCounts all;
    int row = exclusive_scan({.rows = num_rows}, &all).rows;
    for (int i = mine.begin; i < mine.end; ++i) {
      const StepSeat& seat = state.seats[i];
      batch.cu_rows[i] = row;
      batch.base_lens[i] = 0;
      if (num_rows_of(i) == 0) continue;
      const int first = first_unseen_of(params, seat);
      batch.base_lens[i] = first;
      for (int position = first; position + 1 < seat.num_tokens; ++position, ++row) {
        put_row(state, batch, row, i, seat.tail[kStepTail - (seat.num_tokens - position)], position,
                position);
        put_draft_head_row(state, batch, row, i, position, -1);
      }
    }
    if (threadIdx.x == 0) batch.cu_rows[state.num_seats] = all.rows;
    pad_rows(batch, all.rows);
  }
};

// The pass over the last token of each seat and masks after it, which all see each other. Positions
// past the root's block are in spare blocks.
struct SpanPass {
  static constexpr const char* kName = "span_rows";

  // Puts the seat's spare blocks behind the root's, and back what they stood in for.
  static __device__ __forceinline__ void place_spare_blocks(const StepParams& params, int index) {
    const StepState& state = params.memory.state;
    const StepSpans& spans = params.memory.spans;
    const int64_t begin = static_cast<int64_t>(index) * state.max_blocks;
    int32_t* table = spans.block_tables + begin;
    const int old = spans.first_spare[index];
    for (int i = old; i < min(old + spans.num_spare, state.max_blocks); ++i) {
      table[i] = state.block_tables[begin + i];
    }
    const int first = (state.seats[index].num_tokens - 1) / state.block_size + 1;
    for (int i = 0; i < spans.num_spare && first + i < state.max_blocks; ++i) {
      table[first + i] = spans.first_spare_block + index * spans.num_spare + i;
    }
    spans.first_spare[index] = first;
  }

  static __device__ __forceinline__ void make(const StepParams& params, unsigned char*) {
    const StepMemory& memory = params.memory;
    const StepSpans& spans = memory.spans;
    const StepBatch& batch = memory.batch;
    StepState state = memory.state;
    const SeatRange mine = seats_of_thread(state.num_seats);
    const int size = spans.span.num_rows;
    int num_rows = 0;
    for (int i = mine.begin; i < mine.end; ++i) {
      num_rows += state.drafts[i].depth_limit > 0 ? size : 0;
    }
    StepCounts all;
    int row = exclusive_scan({.rows = num_rows}, &all).rows;
    for (int i = mine.begin; i < mine.end; ++i) {
      const int root = state.seats[i].num_tokens - 1;
      const bool drafts = state.drafts[i].depth_limit > 0;
      batch.cu_rows[i] = row;
      batch.base_lens[i] = drafts ? root : 0;
      memory.trees.is_tree[i] = 1;
      if (!drafts) continue;
      place_spare_blocks(params, i);
      row += size;
    }
    if (threadIdx.x == 0) batch.cu_rows[state.num_seats] = all.rows;
    __syncthreads();
    state.block_tables = spans.block_tables;
    for (int i = threadIdx.x; i < state.num_seats * size; i += kStepThreads) {
      const int seat = i / size, offset = i % size;
      if (state.drafts[seat].depth_limit == 0) continue;
      const int at = batch.cu_rows[seat] + offset;
      const int position = state.seats[seat].num_tokens - 1 + offset;
      const int32_t token =
          offset == 0 ? state.seats[seat].tail[kStepTail - 1] : spans.span.mask_token;
      put_row(state, batch, at, seat, token, position, position);
      batch.feature_slots[at] = batch.state_slots[at] = -1;
      memory.trees.masks[at] = ~uint64_t{0} >> (64 - size);
    }
    pad_rows(batch, all.rows);
  }
};

// Which rows of the spans sample in a pass.
struct SpanSamples {
  static constexpr const char* kName = "span_samples";

  static __device__ __forceinline__ void make(const StepParams& params, unsigned char*) {
    const StepMemory& memory = params.memory;
    const StepState& state = memory.state;
    const StepSpans& spans = memory.spans;
    const StepGrowths& growths = memory.growths;
    const int width = growths.shape.width;
    const bool has_frontiers = width > 1 && params.pass > 0;
    const int first_output = spans.span.first_output();
    for (int i = threadIdx.x; i < state.num_seats * (has_frontiers ? width : 1);
         i += kStepThreads) {
      const int seat = has_frontiers ? i / width : i;
      const int row = memory.batch.cu_rows[seat] + first_output + params.pass;
      SeatDrafts& drafts = state.drafts[seat];
      if (params.pass > 0 && width == 1) add_to_chain(drafts, params.pass, memory.sampled[seat]);
      memory.batch.sample_ids[i] = 0;
      memory.batch.samples[i] = DeviceSampleRow{};
      spans.tokens_before[i] = 0;
      if (has_frontiers) {
        const int num_frontier = growths.seats[seat].num_frontier;
        if (i % width == 0) growths.num_kv_slots[seat] += num_frontier;  // as if each had one
        if (i % width >= num_frontier) continue;
        const StepTreeNode* nodes = growths.nodes + static_cast<int64_t>(seat) * growths.capacity;
        spans.tokens_before[i] = nodes[growths.frontiers[i].node - 1].token;
        put_frontier_sample(params, seat, i % width, row);
      } else {
        if (drafts.depth_limit <= params.pass) continue;
        spans.tokens_before[i] = params.pass == 0 ? state.seats[seat].tail[kStepTail - 1]
                                                  : drafts.tokens[params.pass - 1];
        memory.batch.sample_ids[i] = row;
        memory.batch.samples[i] = chain_sample(params, seat);
      }
    }
  }
};

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

// Writes the attempt that made draft node - 1 of seat `index`.
__device__ __forceinline__ void put_attempt(const StepMemory& memory, int index, int node) {
  const bool was_drawn = !is_greedy(memory.state.seats[index].sampling.temperature);
  const bool has_distribution = memory.distributions != nullptr && was_drawn;
  const int first_distribution = index * memory.growths.shape.max_nodes;
  memory.trees.attempts[memory.trees.cu_attempts[index] + node - 1] = {
      .parent = parent_of(memory.state.drafts[index], node),
      .child = node,
      .distribution = has_distribution ? first_distribution + node - 1 : -1};
}

// How many tokens the slot of seat `index` gets to read before the state that it keeps for the
// prefix cache; 0: none is kept.
__device__ __forceinline__ int num_kept_after(const StepState& state, int index) {
  const StepSeatState& own = state.states[index];
  if (own.kept_slot < 0) return 0;
  const int end = state.seats[index].num_tokens;
  const int begin = end - 1 - own.num_pending;
  const int kept = kept_tokens(begin, end, state.block_size);
  return kept > 0 ? kept - begin : 0;
}

// Writes how a seat's rows continue its recurrent state. `before`: what the seats before it have.
__device__ __forceinline__ void put_state(const StepMemory& memory, int index, bool has_rows,
                                          const StepCounts& before) {
  const StepSeatState& own = memory.state.states[index];
  const StepStates& states = memory.states;
  states.cu_pending[index] = before.pending;
  states.cu_stores[index] = before.stores;
  states.slots_in[index] = has_rows ? own.slot : -1;
  if (!has_rows) return;
  for (int i = 0; i < own.num_pending; ++i) states.pending[before.pending + i] = own.pending[i];
  StateStore* stores = states.stores + before.stores;
  const int num_kept = num_kept_after(memory.state, index);
  if (num_kept > 0) *stores++ = {num_kept, own.kept_slot};
  *stores = {own.num_pending + 1, own.slot};
}

// The seat that a row belongs to: the last one whose first row is at or before it. Earlier seats
// with the same first row have no rows.
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

// The target's pass over the last token and the drafts of each seat.
struct VerifyPass {
  static constexpr const char* kName = "verify_rows";

  static __device__ __forceinline__ bool may_have_drafts(const StepParams& params, int index) {
    return (params.num_passes > 0 || params.has_host_drafts != 0) &&
           params.memory.state.seats[index].is_active != 0;
  }
  // Whether seats have chains: their last draft is added in this pass.
  static __device__ __forceinline__ bool has_chains(const StepParams& params) {
    return params.num_passes > 0 && params.memory.growths.shape.width == 1;
  }
  // Valid once the seat has its last draft.
  static __device__ __forceinline__ StepCounts counts_of(const StepState& state, int index) {
    if (state.seats[index].is_active == 0) return {};
    const int num_drafts = state.drafts[index].num_drafts;
    StepCounts counts = {.rows = 1 + num_drafts, .drafts = num_drafts};
    if (state.states != nullptr) {
      counts.pending = state.states[index].num_pending;
      counts.stores = num_kept_after(state, index) > 0 ? 2 : 1;
    }
    return counts;
  }

  static __device__ __forceinline__ void make(const StepParams& params,
                                              unsigned char* shared_bytes) {
    int32_t* first_rows = reinterpret_cast<int32_t*>(shared_bytes);  // [num_seats]
    const StepMemory& memory = params.memory;
    const StepState& state = memory.state;
    const StepBatch& batch = memory.batch;
    const StepTrees& trees = memory.trees;
    if (threadIdx.x == 0) memory.times->verify = ptx::nanoseconds();
    const SeatRange mine = seats_of_thread(state.num_seats);
    StepCounts own;
    for (int i = mine.begin; i < mine.end; ++i) {
      SeatDrafts& drafts = state.drafts[i];
      if (!may_have_drafts(params, i)) {
        drafts.num_drafts = 0;
        drafts.is_tree = 0;
      } else if (has_chains(params)) {
        add_to_chain(drafts, params.num_passes, memory.sampled[i]);
      }
      own = own + counts_of(state, i);
    }
    StepCounts all;
    StepCounts before = exclusive_scan(own, &all);
    for (int i = mine.begin; i < mine.end; ++i) {
      const StepSeat& seat = state.seats[i];
      const SeatDrafts& drafts = state.drafts[i];
      first_rows[i] = batch.cu_rows[i] = before.rows;
      batch.base_lens[i] = seat.num_tokens - 1;
      trees.is_tree[i] = drafts.is_tree != 0;
      trees.seeds[i] = seat.sampling.seed;
      trees.cu_attempts[i] = before.drafts;
      if (state.states != nullptr) put_state(memory, i, seat.is_active != 0, before);
      before = before + counts_of(state, i);
    }
    const int total = all.rows;
    if (threadIdx.x == 0) {
      batch.cu_rows[state.num_seats] = total;
      trees.cu_attempts[state.num_seats] = all.drafts;
      if (state.states != nullptr) {
        memory.states.cu_pending[state.num_seats] = all.pending;
        memory.states.cu_stores[state.num_seats] = all.stores;
      }
    }
    __syncthreads();
    for (int row = threadIdx.x; row < total; row += kStepThreads) {
      const int index = seat_of_row(first_rows, state.num_seats, row);
      const int node = row - first_rows[index];
      put_node(memory, index, node, row);
      if (node > 0) put_attempt(memory, index, node);
      if (state.states != nullptr) {
        memory.states.records[row] =
            node > 0 ? state.states[index].first_records[0] + node - 1 : -1;
      }
    }
    pad_rows(batch, total);
    for (int padding = total + threadIdx.x; padding < batch.max_rows; padding += kStepThreads) {
      batch.sample_ids[padding] = padding;
      batch.samples[padding] = DeviceSampleRow{};
      if (state.states != nullptr) memory.states.records[padding] = -1;
    }
  }
};

template <class Pass>
__global__ void __launch_bounds__(kStepThreads, 1) make_rows_kernel(StepParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  ptx::wait_for_previous();
  ptx::let_next_start();
  Pass::make(params, shared_bytes);
}

// With shared memory for VerifyPass's first_rows.
LaunchConfig config_of(const StepParams& params) {
  LaunchConfig config = kOneStepBlock;
  config.shared_bytes = sizeof(int32_t) * static_cast<size_t>(params.memory.state.num_seats);
  return config;
}

template <class Use>
void with_pass(PassRows kind, Use&& use) {
  switch (kind) {
    case PassRows::kDraft:
      return use(DraftPass());
    case PassRows::kTree:
      return use(TreePass());
    case PassRows::kVerify:
      return use(VerifyPass());
    case PassRows::kContext:
      return use(ContextPass());
    case PassRows::kSpan:
      return use(SpanPass());
    case PassRows::kSpanSamples:
      return use(SpanSamples());
  }
}

}  // namespace

void make_rows(Stream& stream, PassRows kind, const StepParams& params) {
  with_pass(kind, [&]<class Pass>(Pass) {
    launch(Pass::kName, stream, make_rows_kernel<Pass>, config_of(params), params);
  });
}

}  // namespace specdec::cuda::SPECDEC_TARGET
