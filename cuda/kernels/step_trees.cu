// Trees that a draft model grows level by level: what DraftModelDrafter does, node for node.
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_rows.cuh"
#include "cuda/kernels/step_trees.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kGrowThreads = 128;
constexpr int kMaxChildren = kMaxTreeWidth * kMaxTreeWidth;  // of a level

// The tokens from the root's child down to a node of depth `depth`.
__device__ __forceinline__ void put_path(const StepTreeNode* nodes, int node, int depth,
                                         int32_t* path) {
  for (int i = depth - 1; i >= 0; --i) {
    path[i] = nodes[node - 1].token;
    node = nodes[node - 1].parent;
  }
}

// Row `row` of the pass: place `place` of the slot's frontier.
__device__ __forceinline__ void put_frontier(const TreeRowsParams& params, int index, int place,
                                             int row) {
  const StepSlot& slot = params.state.slots[index];
  const StepGrowths& growths = params.growths;
  const StepBatch& batch = params.batch;
  const int64_t sample_at = static_cast<int64_t>(index) * growths.width + place;
  StepFrontier& frontier = growths.frontiers[sample_at];
  StepTreeNode* nodes = growths.nodes + static_cast<int64_t>(index) * growths.capacity;
  const int root = slot.num_tokens - 1;
  const int kv_place = growths.num_kv_slots[index] - growths.slots[index].num_frontier + place;
  nodes[frontier.node - 1].kv_place = kv_place;
  const uint64_t mask = frontier.mask | uint64_t{1} << kv_place;
  frontier.mask = mask;
  params.masks[row] = mask;
  put_row(params.state, batch, row, index, nodes[frontier.node - 1].token, root + params.pass,
          root + kv_place);
  int32_t* path = params.paths + sample_at * kMaxStepDrafts;
  // Nothing else reads it.
  if (slot.count_table != nullptr) put_path(nodes, frontier.node, params.pass, path);
  DeviceSampleRow sample = sample_after(slot, path, params.pass);
  sample.want_logprobs = 0;
  sample.num_logprobs = 0;
  sample.num_candidates = growths.width;
  if (params.argmax != 0) sample.temperature = 0.0f;
  batch.sample_ids[sample_at] = row;
  batch.samples[sample_at] = sample;
}

__global__ void __launch_bounds__(kStepThreads, 1) tree_rows_kernel(TreeRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepSlots& state = params.state;
  const StepBatch& batch = params.batch;
  const StepGrowths& growths = params.growths;
  const SlotRange mine = slots_of_thread(state.num_slots);
  int num_rows = 0;
  for (int i = mine.begin; i < mine.end; ++i) num_rows += growths.slots[i].num_frontier;
  StepCounts all;
  int row = exclusive_scan({num_rows, 0}, &all).rows;
  for (int i = mine.begin; i < mine.end; ++i) {
    const int num_frontier = growths.slots[i].num_frontier;
    batch.cu_rows[i] = row;
    batch.base_lens[i] = state.slots[i].num_tokens - 1;
    params.is_tree[i] = 1;
    growths.num_kv_slots[i] += num_frontier;
    row += num_frontier;
  }
  if (threadIdx.x == 0) batch.cu_rows[state.num_slots] = all.rows;
  __syncthreads();
  for (int i = threadIdx.x; i < state.num_slots * growths.width; i += kStepThreads) {
    const int slot = i / growths.width;
    const int place = i % growths.width;
    if (place < growths.slots[slot].num_frontier) {
      put_frontier(params, slot, place, batch.cu_rows[slot] + place);
    } else {
      batch.sample_ids[i] = 0;
      batch.samples[i] = DeviceSampleRow{};
    }
  }
  pad_rows(batch, all.rows);
}

struct GrowShared {
  StepFrontier frontier[kMaxTreeWidth];  // that the pass ran
  int32_t first_child[kMaxTreeWidth + 1];
  int32_t row_of[kMaxChildren];
  float survivals[kMaxTreeNodes];
  int32_t places[kMaxTreeNodes];  // in the tree that is left; -1: dropped
};

// How many of the nodes come before `node` by survival, then by age.
__device__ __forceinline__ int rank_among(const float* survivals, int num_nodes, int node) {
  const float own = survivals[node];
  int rank = 0;
  for (int i = 0; i < num_nodes; ++i) {
    rank += survivals[i] > own || (survivals[i] == own && i < node) ? 1 : 0;
  }
  return rank;
}

// The tree of one slot; all threads of a block call its functions.
struct Growing {
  GrowShared& shared;
  const GrowTreesParams& params;
  StepSlot& slot;
  int index;
  StepTreeNode* nodes;     // [capacity]
  StepFrontier* frontier;  // [width]
  int num_frontier = 0;    // that the pass ran
  int num_before = 0;      // nodes
  int num_children = 0;    // of this level

  __device__ int width() const { return params.growths.width; }
  // While a tree grows, num_drafts is the depth it may reach.
  __device__ int max_nodes() const {
    return min(params.growths.max_nodes, slot.num_drafts * width());
  }

  __device__ void begin() {
    if (params.pass == 0) {
      num_frontier = slot.num_drafts > 0 ? 1 : 0;
      if (threadIdx.x == 0) {
        shared.frontier[0] = {.node = 0, .survival = 1.0f, .mask = 1};
        params.growths.num_kv_slots[index] = 1;
      }
    } else {
      num_frontier = params.growths.slots[index].num_frontier;
      num_before = params.growths.slots[index].num_nodes;
      if (static_cast<int>(threadIdx.x) < num_frontier) {
        shared.frontier[threadIdx.x] = frontier[threadIdx.x];
      }
    }
    __syncthreads();
  }

  // What the pass sampled for place `place` of the frontier.
  __device__ int64_t sample_of(int place) const {
    return params.pass == 0 ? index : static_cast<int64_t>(index) * width() + place;
  }

  __device__ void add_children() {
    if (threadIdx.x == 0) {
      int total = 0;
      for (int place = 0; place < num_frontier; ++place) {
        shared.first_child[place] = total;
        total += params.num_candidates[sample_of(place)];
      }
      shared.first_child[num_frontier] = total;
    }
    __syncthreads();
    num_children = shared.first_child[num_frontier];
    for (int i = threadIdx.x; i < num_frontier * width(); i += kGrowThreads) {
      const int place = i / width();
      const int child = shared.first_child[place] + i % width();
      if (child >= shared.first_child[place + 1]) continue;
      const StepFrontier& parent = shared.frontier[place];
      const DeviceCandidate candidate = params.candidates[sample_of(place) * width() + i % width()];
      const float survival = fminf(parent.survival * candidate.probability, parent.survival);
      nodes[num_before + child] = {candidate.token_id, parent.node, survival, /*kv_place=*/0};
      shared.survivals[child] = survival;
      shared.row_of[child] = place;
    }
    __syncthreads();
  }

  // The likeliest children run next, as many as the tree is wide and has room for.
  __device__ void choose_frontier() {
    const bool goes_on = params.pass + 1 < slot.num_drafts;
    const int room = max(0, max_nodes() + 1 - params.growths.num_kv_slots[index]);
    const int num_next = goes_on ? min(min(num_children, width()), room) : 0;
    for (int child = threadIdx.x; num_next > 0 && child < num_children; child += kGrowThreads) {
      const int rank = rank_among(shared.survivals, num_children, child);
      if (rank >= num_next) continue;
      frontier[rank] = {.node = num_before + child + 1,
                        .survival = shared.survivals[child],
                        .mask = shared.frontier[shared.row_of[child]].mask};
    }
    if (threadIdx.x == 0) {
      params.growths.slots[index] = {.num_nodes = num_before + num_children,
                                     .num_frontier = num_next};
    }
  }

  // Leaves the likeliest nodes as the slot's drafts, in order.
  __device__ void truncate() {
    const int num_nodes = num_before + num_children;
    const int limit = max_nodes();
    __syncthreads();
    for (int node = threadIdx.x; node < num_nodes; node += kGrowThreads) {
      shared.survivals[node] = nodes[node].survival;
    }
    __syncthreads();
    for (int node = threadIdx.x; node < num_nodes; node += kGrowThreads) {
      shared.places[node] = rank_among(shared.survivals, num_nodes, node) < limit ? 0 : -1;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    int num_kept = 0;
    for (int base = 0; base < num_nodes; base += 32) {
      const int node = base + static_cast<int>(threadIdx.x);
      const bool keeps = node < num_nodes && shared.places[node] >= 0;
      const uint32_t votes = __ballot_sync(0xffffffffu, keeps);
      const int place = num_kept + __popc(votes & ((uint32_t{1} << threadIdx.x) - 1));
      if (keeps) shared.places[node] = place;
      __syncwarp();
      if (keeps) {
        const StepTreeNode& kept = nodes[node];
        slot.drafts[place] = kept.token;
        slot.parents[place] = kept.parent == 0 ? 0 : shared.places[kept.parent - 1] + 1;
        params.growths.kv_places[static_cast<int64_t>(index) * kMaxStepDrafts + place] =
            kept.kv_place;
      }
      num_kept += __popc(votes);
    }
    if (threadIdx.x == 0) {
      slot.num_drafts = num_kept;
      slot.is_tree = num_kept > 0 ? 1 : 0;
    }
  }
};

__global__ void __launch_bounds__(kGrowThreads) grow_trees_kernel(GrowTreesParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  GrowShared& shared = *reinterpret_cast<GrowShared*>(shared_bytes);
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepGrowths& growths = params.growths;
  const int index = static_cast<int>(blockIdx.x);
  Growing tree = {.shared = shared,
                  .params = params,
                  .slot = params.state.slots[index],
                  .index = index,
                  .nodes = growths.nodes + static_cast<int64_t>(index) * growths.capacity,
                  .frontier = growths.frontiers + static_cast<int64_t>(index) * growths.width};
  tree.begin();
  tree.add_children();
  tree.choose_frontier();
  if (params.is_last != 0) tree.truncate();
}

}  // namespace

void tree_rows(Stream& stream, const TreeRowsParams& params) {
  launch("tree_rows", stream, tree_rows_kernel, kOneStepBlock, params);
}

void grow_trees(Stream& stream, const GrowTreesParams& params) {
  launch("grow_trees", stream, grow_trees_kernel,
         {.grid = {static_cast<unsigned>(params.state.num_slots)},
          .block = {kGrowThreads},
          .shared_bytes = sizeof(GrowShared),
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
