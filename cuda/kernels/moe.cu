#include <cstdint>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/moe_projections.cuh"
#include "cuda/kernels/projection_codes.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

unsigned blocks_of(int64_t count, int of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

// --- Routing: a warp per row, expert i in lane i % 32 ---

// A larger logit, then a lower index, gives a larger key.
__device__ __forceinline__ uint64_t key_of(float logit, int index) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(kMaxExperts - index);
}
__device__ __forceinline__ int expert_of(uint64_t key) {
  return kMaxExperts - static_cast<int>(static_cast<uint32_t>(key));
}

__device__ __forceinline__ uint64_t best_of_lanes(uint64_t key) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, key, distance);
    if (other > key) key = other;
  }
  return key;
}

// The greatest key below `limit`.
__device__ __forceinline__ uint64_t best_below(uint64_t limit, const float* logits,
                                               int num_experts) {
  uint64_t best = 0;
  for (int i = threadIdx.x % kWarpSize; i < num_experts; i += kWarpSize) {
    const uint64_t key = key_of(logits[i], i);
    if (key < limit && key > best) best = key;
  }
  return best_of_lanes(best);
}

__device__ __forceinline__ float finished_weight(const Router& router, int expert, float weight) {
  const float scaled = weight * router.scale;
  return router.expert_scales != nullptr ? scaled * router.expert_scales[expert] : scaled;
}

// For scores of the softmax, where the best logits are chosen.
__global__ void route_kernel(RouteParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (row >= params.num_rows) return;
  const float* logits = params.logits + int64_t{row} * params.num_experts;
  int32_t* experts = params.experts + int64_t{row} * params.router.top_k;
  float* weights = params.weights + int64_t{row} * params.router.top_k;
  float highest = 0.0f;
  float total = 0.0f;
  uint64_t key = ~uint64_t{0};
  for (int order = 0; order < params.router.top_k; ++order) {
    key = best_below(key, logits, params.num_experts);
    const int expert = expert_of(key);
    const float logit = logits[expert];
    if (order == 0) highest = logit;
    const float weight = expf(logit - highest);
    total += weight;
    if (lane != 0) continue;
    experts[order] = expert;
    weights[order] = weight;
  }
  if (!params.router.renormalize) {
    total = 0.0f;
    for (int i = lane; i < params.num_experts; i += kWarpSize) total += expf(logits[i] - highest);
    total = warp_sum(total);
  }
  if (lane != 0) return;
  for (int order = 0; order < params.router.top_k; ++order) {
    weights[order] = finished_weight(params.router, experts[order], weights[order] / total);
  }
}

constexpr int kLaneExperts = kMaxExperts / kWarpSize;

// The biased scores of experts outside of the best groups become -inf.
__device__ __forceinline__ void leave_best_groups(const Router& router, int num_experts,
                                                  float (&biased)[kLaneExperts]) {
  static_assert(kMaxExpertGroups <= kWarpSize);
  const int lane = threadIdx.x % kWarpSize;
  const int group_size = num_experts / router.num_groups;
  float own_score = 0.0f;  // of group `lane`
#pragma unroll 1
  for (int group = 0; group < router.num_groups; ++group) {
    float best = -kInfinity;
    float second = -kInfinity;
#pragma unroll
    for (int j = 0; j < kLaneExperts; ++j) {
      const int in_group = lane + j * kWarpSize - group * group_size;
      if (in_group < 0 || in_group >= group_size) continue;
      second = fmaxf(second, fminf(best, biased[j]));
      best = fmaxf(best, biased[j]);
    }
#pragma unroll 1
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const float other_best = __shfl_xor_sync(kAllLanes, best, distance);
      const float other_second = __shfl_xor_sync(kAllLanes, second, distance);
      second = fmaxf(fmaxf(second, other_second), fminf(best, other_best));
      best = fmaxf(best, other_best);
    }
    if (lane == group) own_score = group_size == 1 ? best : best + second;
  }
  const uint64_t own_key = lane < router.num_groups ? key_of(own_score, lane) : 0;
  uint64_t key = ~uint64_t{0};
  uint32_t chosen = 0;
#pragma unroll 1
  for (int order = 0; order < router.top_groups; ++order) {
    key = best_of_lanes(own_key < key ? own_key : 0);
    chosen |= 1u << expert_of(key);
  }
#pragma unroll
  for (int j = 0; j < kLaneExperts; ++j) {
    const int expert = lane + j * kWarpSize;
    if (expert >= num_experts) continue;
    if ((chosen >> expert / group_size & 1u) == 0) biased[j] = -kInfinity;
  }
}

// For every Router.
__global__ void route_by_scores_kernel(RouteParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (row >= params.num_rows) return;
  const Router& router = params.router;
  const int num_experts = params.num_experts;
  const float* logits = params.logits + int64_t{row} * num_experts;
  int32_t* experts = params.experts + int64_t{row} * router.top_k;
  float* weights = params.weights + int64_t{row} * router.top_k;
  const bool is_softmax = router.scores == RouterScores::kSoftmax;
  float highest = 0.0f;
  float total = 1.0f;
  if (is_softmax) {
    highest = -kInfinity;
    for (int i = lane; i < num_experts; i += kWarpSize) highest = fmaxf(highest, logits[i]);
    highest = warp_max(highest);
    total = 0.0f;
    for (int i = lane; i < num_experts; i += kWarpSize) total += expf(logits[i] - highest);
    total = warp_sum(total);
  }
  const auto score_of = [&](int expert) {
    const float logit = logits[expert];
    return is_softmax ? expf(logit - highest) / total : 1.0f / (1.0f + expf(-logit));
  };
  float biased[kLaneExperts];
#pragma unroll
  for (int j = 0; j < kLaneExperts; ++j) {
    const int expert = lane + j * kWarpSize;
    biased[j] = 0.0f;
    if (expert >= num_experts) continue;
    biased[j] = router.chooses_by_logits() ? logits[expert] : score_of(expert);
    if (router.selection_bias != nullptr) biased[j] += router.selection_bias[expert];
  }
  if (router.restricts_groups()) leave_best_groups(router, num_experts, biased);
  float sum = 0.0f;
  uint64_t key = ~uint64_t{0};
#pragma unroll 1
  for (int order = 0; order < router.top_k; ++order) {
    uint64_t best = 0;
#pragma unroll
    for (int j = 0; j < kLaneExperts; ++j) {
      const int i = lane + j * kWarpSize;
      const uint64_t candidate = i < num_experts ? key_of(biased[j], i) : 0;
      if (candidate < key && candidate > best) best = candidate;
    }
    key = best_of_lanes(best);
    const int expert = expert_of(key);
    const float weight = score_of(expert);
    sum += weight;
    if (lane != 0) continue;
    experts[order] = expert;
    weights[order] = weight;
  }
  if (lane != 0) return;
  if (!router.renormalize) {
    sum = 1.0f;
  } else if (!is_softmax) {
    sum += 1e-20f;
  }
  for (int order = 0; order < router.top_k; ++order) {
    weights[order] = finished_weight(router, experts[order], weights[order] / sum);
  }
}

// --- Grouping: a block per expert ---

// Sum over the block, for every thread. `partial` is free afterwards.
__device__ int block_sum(int value, int* partial) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  int total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp];
  __syncthreads();
  return total;
}

__global__ void group_kernel(GroupParams params) {
  __shared__ int partial[kWarps];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int expert = blockIdx.x;
  int lower = 0;
  int equal = 0;
  for (int choice = threadIdx.x; choice < params.num_choices; choice += kThreads) {
    lower += params.experts[choice] < expert;
    equal += params.experts[choice] == expert;
  }
  lower = block_sum(lower, partial);
  equal = block_sum(equal, partial);
  if (threadIdx.x == 0) {
    params.cu_rows[expert] = lower;
    if (expert == params.num_experts - 1) params.cu_rows[expert + 1] = lower + equal;
  }
  const int warp = threadIdx.x / kWarpSize;
  int next = lower;
  for (int begin = 0; begin < params.num_choices; begin += kThreads) {
    const int choice = begin + threadIdx.x;
    const bool is_mine = choice < params.num_choices && params.experts[choice] == expert;
    const uint32_t votes = __ballot_sync(kAllLanes, is_mine);
    if (threadIdx.x % kWarpSize == 0) partial[warp] = __popc(votes);
    __syncthreads();
    int index = next + __popc(votes & ((1u << threadIdx.x % kWarpSize) - 1));
    for (int other = 0; other < kWarps; ++other) {
      if (other < warp) index += partial[other];
      next += partial[other];
    }
    __syncthreads();
    if (!is_mine) continue;
    params.row_ids[index] = choice / params.top_k;
    params.choice_order[choice] = index;
  }
}

// --- Sums over the experts of a row ---

__global__ void combine_kernel(CombineParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= params.dim) return;
  const int64_t row = blockIdx.x;
  float sum = params.accumulate ? params.out[row * params.dim + i] : 0.0f;
  for (int order = 0; order < params.top_k; ++order) {
    const int64_t choice = row * params.top_k + order;
    const int64_t index = params.choice_order[choice];
    sum = fmaf(params.weights[choice], params.results[index * params.dim + i], sum);
  }
  params.out[row * params.dim + i] = sum;
}

void route(Stream& stream, const RouteParams& params) {
  const Router& router = params.router;
  const bool is_plain = router.scores == RouterScores::kSoftmax && router.chooses_by_logits();
  launch("moe: route", stream, is_plain ? route_kernel : route_by_scores_kernel,
         {.grid = {blocks_of(params.num_rows, kWarps)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void group(Stream& stream, const GroupParams& params) {
  launch("moe: group", stream, group_kernel,
         {.grid = {static_cast<unsigned>(params.num_experts)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

void project(Stream& stream, const ExpertProjectionsParams& params) {
  switch (params.projection.format) {
    case WeightFormat::kAct:
      return expert_projections_by_dtype<ActFormat>(stream, params);
    case WeightFormat::kInt8:
      return expert_projections_by_dtype<Int8Format>(stream, params);
    case WeightFormat::kInt8Grouped:
      return expert_projections_by_dtype<Int8GroupedFormat>(stream, params);
    case WeightFormat::kInt8GroupedMin:
      return expert_projections_by_dtype<Int8GroupedMinFormat>(stream, params);
    case WeightFormat::kInt4Grouped:
      return expert_projections_by_dtype<Int4GroupedFormat>(stream, params);
    case WeightFormat::kInt4GroupedMin:
      return expert_projections_by_dtype<Int4GroupedMinFormat>(stream, params);
    case WeightFormat::kInt4GroupedZero:
      return expert_projections_by_dtype<Int4GroupedZeroFormat>(stream, params);
    case WeightFormat::kInt4Table:
      return expert_projections_by_dtype<Int4TableFormat>(stream, params);
    case WeightFormat::kInt8Grouped16:
      return expert_projections_by_dtype<Int8Grouped16Format>(stream, params);
    case WeightFormat::kFp8:
      return expert_projections_by_dtype<Fp8Format>(stream, params);
    case WeightFormat::kFp8Grouped:
      return expert_projections_by_dtype<Fp8GroupedFormat>(stream, params);
  }
}

void combine(Stream& stream, const CombineParams& params) {
  launch("moe: combine", stream, combine_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows), blocks_of(params.dim, kThreads)},
          .block = {kThreads},
          .overlaps_previous = true},
         params);
}

}  // namespace

MoeKernels moe_kernels() {
  return {.route = route, .group = group, .project = project, .combine = combine};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
