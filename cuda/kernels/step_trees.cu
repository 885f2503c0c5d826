// Trees that a draft model grows level by level, the same as ModelDrafter (runtime/model_drafter.h)
// grows on the host. DeviceDrafts.TreesAreThoseOfTheHostWhateverWasAccepted
// (tests/cuda/engine/device_drafters_test.cc) compares them.
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/step_rows.cuh"
#include "cuda/kernels/step_trees.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kGrowThreads = 128;
constexpr int kMaxChildren = kMaxTreeWidth * kMaxTreeWidth;  // of a level

struct GrowShared {
  StepFrontier frontier[kMaxTreeWidth];  // nodes that the pass ran
  int32_t first_child[kMaxTreeWidth + 1];
  int32_t entry_of[kMaxChildren];  // the frontier's entry of each child
  float survivals[kMaxTreeNodes];
  int32_t drafts[kMaxTreeNodes];  // which draft a node becomes; -1: none
};

// How many nodes have a higher survival than `node`; among equal ones the older counts as higher.
__device__ __forceinline__ int order_among(const float* survivals, int num_nodes, int node) {
  const float own = survivals[node];
  int order = 0;
  for (int i = 0; i < num_nodes; ++i) {
    order += survivals[i] > own || (survivals[i] == own && i < node) ? 1 : 0;
  }
  return order;
}

// The growing tree of one seat. All threads of a block call its functions.
struct Growing {
  GrowShared& shared;
  const StepParams& params;
  const StepGrowths& growths;
  SeatDrafts& drafts;
  int index;
  StepTreeNode* nodes;     // [capacity]
  StepFrontier* frontier;  // [width]
  int num_frontier = 0;    // entries that the pass ran
  int num_before = 0;      // nodes of earlier levels
  int num_children = 0;    // nodes of this level

  __device__ int width() const { return growths.shape.width; }
  __device__ int max_nodes() const { return growths.shape.num_nodes(drafts.depth_limit); }

  __device__ void begin() {
    if (params.pass == 0) {
      num_frontier = drafts.depth_limit > 0 ? 1 : 0;
      if (threadIdx.x == 0) {
        shared.frontier[0] = {.node = 0, .survival = 1.0f, .mask = 1};
        growths.num_kv_slots[index] = 1;
      }
    } else {
      num_frontier = growths.seats[index].num_frontier;
      num_before = growths.seats[index].num_nodes;
      if (static_cast<int>(threadIdx.x) < num_frontier) {
        shared.frontier[threadIdx.x] = frontier[threadIdx.x];
      }
    }
    __syncthreads();
  }

  // The sample that continues entry `entry` of the frontier.
  __device__ int64_t sample_of(int entry) const {
    return params.pass == 0 ? index : static_cast<int64_t>(index) * width() + entry;
  }

  __device__ void add_children() {
    if (threadIdx.x == 0) {
      int total = 0;
      for (int entry = 0; entry < num_frontier; ++entry) {
        shared.first_child[entry] = total;
        total += params.memory.num_candidates[sample_of(entry)];
      }
      shared.first_child[num_frontier] = total;
    }
    __syncthreads();
    num_children = shared.first_child[num_frontier];
    for (int i = threadIdx.x; i < num_frontier * width(); i += kGrowThreads) {
      const int entry = i / width();
      const int child = shared.first_child[entry] + i % width();
      if (child >= shared.first_child[entry + 1]) continue;
      const StepFrontier& parent = shared.frontier[entry];
      const DeviceCandidate candidate =
          params.memory.candidates[sample_of(entry) * width() + i % width()];
      const float survival = fminf(parent.survival * candidate.probability, parent.survival);
      nodes[num_before + child] = {candidate.token_id, parent.node, survival, /*kv_offset=*/0};
      shared.survivals[child] = survival;
      shared.entry_of[child] = entry;
    }
    __syncthreads();
  }

  // The next pass runs the likeliest children, as many as the tree's width and its free KV slots
  // allow.
  __device__ void choose_frontier() {
    const bool goes_on = params.pass + 1 < drafts.depth_limit;
    const int room = max(0, max_nodes() + 1 - growths.num_kv_slots[index]);
    const int num_next = goes_on ? min(min(num_children, width()), room) : 0;
    for (int child = threadIdx.x; num_next > 0 && child < num_children; child += kGrowThreads) {
      const int order = order_among(shared.survivals, num_children, child);
      if (order >= num_next) continue;
      frontier[order] = {.node = num_before + child + 1,
                         .survival = shared.survivals[child],
                         .mask = shared.frontier[shared.entry_of[child]].mask};
    }
    if (threadIdx.x == 0) {
      growths.seats[index] = {.num_nodes = num_before + num_children, .num_frontier = num_next};
    }
  }

  // The likeliest nodes become the seat's drafts, in their order.
  __device__ void truncate() {
    const int num_nodes = num_before + num_children;
    const int limit = max_nodes();
    __syncthreads();
    for (int node = threadIdx.x; node < num_nodes; node += kGrowThreads) {
      shared.survivals[node] = nodes[node].survival;
    }
    __syncthreads();
    for (int node = threadIdx.x; node < num_nodes; node += kGrowThreads) {
      shared.drafts[node] = order_among(shared.survivals, num_nodes, node) < limit ? 0 : -1;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    int num_kept = 0;
    for (int base = 0; base < num_nodes; base += 32) {
      const int node = base + static_cast<int>(threadIdx.x);
      const bool keeps = node < num_nodes && shared.drafts[node] >= 0;
      const uint32_t votes = __ballot_sync(0xffffffffu, keeps);
      const int draft = num_kept + __popc(votes & ((uint32_t{1} << threadIdx.x) - 1));
      if (keeps) shared.drafts[node] = draft;
      __syncwarp();
      if (keeps) {
        const StepTreeNode& kept = nodes[node];
        drafts.tokens[draft] = kept.token;
        drafts.parents[draft] = kept.parent == 0 ? 0 : shared.drafts[kept.parent - 1] + 1;
        growths.kv_offsets[static_cast<int64_t>(index) * kMaxStepDrafts + draft] = kept.kv_offset;
      }
      num_kept += __popc(votes);
    }
    if (threadIdx.x == 0) {
      drafts.num_drafts = num_kept;
      drafts.is_tree = num_kept > 0 ? 1 : 0;
    }
  }
};

__global__ void __launch_bounds__(kGrowThreads) grow_trees_kernel(StepParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  GrowShared& shared = *reinterpret_cast<GrowShared*>(shared_bytes);
  ptx::wait_for_previous();
  ptx::let_next_start();
  const StepGrowths& growths = params.memory.growths;
  const int index = static_cast<int>(blockIdx.x);
  Growing tree = {
      .shared = shared,
      .params = params,
      .growths = growths,
      .drafts = params.memory.state.drafts[index],
      .index = index,
      .nodes = growths.nodes + static_cast<int64_t>(index) * growths.capacity,
      .frontier = growths.frontiers + static_cast<int64_t>(index) * growths.shape.width};
  tree.begin();
  tree.add_children();
  tree.choose_frontier();
  if (params.pass + 1 == params.num_passes) tree.truncate();
}

}  // namespace

void grow_trees(Stream& stream, const StepParams& params) {
  launch("grow_trees", stream, grow_trees_kernel,
         {.grid = {static_cast<unsigned>(params.memory.state.num_seats)},
          .block = {kGrowThreads},
          .shared_bytes = sizeof(GrowShared),
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
