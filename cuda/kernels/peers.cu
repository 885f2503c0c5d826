#include <algorithm>

#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/peers.h"
#include "cuda/kernels/projection_finish.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 256;
constexpr int kPollsBetweenLooks = 64;  // polls between looks at the clock and `missing`
// Elements of a sum per round: a rank sends up to kMaxSubtrees planes of each.
constexpr int kSumFloats = kBufferFloats / kMaxSubtrees;

__device__ __forceinline__ void begin(const PeerLinks& links) {
  ptx::wait_for_previous();
  if (!links.shares_device) ptx::let_next_start();
}

// The rounds of a block.
template <bool kMailboxes>
class Rounds {
 public:
  __device__ explicit Rounds(const PeerLinks& links)
      : links_(links), round_(kMailboxes ? links.rounds[blockIdx.x] : 0) {}

  // fill(other, buffer) writes the data for rank `other`; all threads call it.
  template <class Fill>
  __device__ void send(const Fill& fill) const {
    if constexpr (kMailboxes) {
      for (int i = 1; i < links_.size; ++i) {
        const int other = (links_.rank + i) % links_.size;  // so that ranks do not all write to the
                                                            // same one
        fill(other, buffer(other, links_.rank));
      }
      meet();
    }
  }

  // The data that rank `other` sent in this round; without mailboxes, its whole part.
  __device__ const float* from(int other) const {
    return kMailboxes ? buffer(links_.rank, other) : links_.parts[other];
  }

  __device__ void next() {
    if constexpr (kMailboxes) ++round_;
  }
  __device__ void end() const {
    if (kMailboxes && threadIdx.x == 0) links_.rounds[blockIdx.x] = round_;
  }

 private:
  __device__ float* buffer(int at, int from) const {
    const int64_t index =
        (int64_t{blockIdx.x} * 2 + static_cast<int>(round_ % 2)) * links_.size + from;
    return reinterpret_cast<float*>(links_.mailboxes[at] + kMailboxFlagBytes) +
           index * kBufferFloats;
  }
  __device__ uint32_t* flag(int at, int from) const {
    return reinterpret_cast<uint32_t*>(links_.mailboxes[at]) + blockIdx.x * kMaxPeers + from;
  }

  // Exchanges flags with the other ranks. After that each rank sees the others' writes from before
  // it.
  __device__ void meet() const {
    __syncthreads();
    const int other = threadIdx.x;
    const bool has_other = other < links_.size && other != links_.rank;
    if (has_other) ptx::store_release_system(flag(other, links_.rank), round_ + 1);
    __syncwarp();
    if (has_other) wait_for(other);
    __syncthreads();
  }

  __device__ void wait_for(int other) const {
    const uint32_t* raised = flag(links_.rank, other);
    const uint64_t begin = ptx::nanoseconds();
    for (int polls = 1;; ++polls) {
      if (static_cast<int32_t>(ptx::load_acquire_system(raised) - (round_ + 1)) >= 0) return;
      if (polls % kPollsBetweenLooks != 0) continue;
      if (ptx::load_acquire_system(links_.missing) != 0) return;
      if (ptx::nanoseconds() - begin > links_.timeout) {
        ptx::store_release_system(links_.missing, static_cast<uint32_t>(other) + 1);
        return;
      }
    }
  }

  const PeerLinks& links_;
  uint32_t round_;
};

// --- sums ---

// The expert of a row; 0 where rows belong to none.
__device__ __forceinline__ int expert_of(const RowExperts& experts, int row) {
  int begin = 0;
  int end = experts.num_experts;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (experts.cu_rows[middle] <= row ? begin : end) = middle;
  }
  return begin;
}

__device__ __forceinline__ float scale_of(const PeerSumParams& params, int expert, int column) {
  const RowExperts& experts = params.experts;
  if (experts.scales_offset == 0) {
    return params.finish.scales != nullptr ? params.finish.scales[column] : 1.0f;
  }
  const char* weights = static_cast<const char*>(experts.weights[expert]);
  return reinterpret_cast<const float*>(weights + experts.scales_offset)[column];
}

// Stores element `index` of the output, as LinearArgs says.
__device__ __forceinline__ void finish_sum(const PeerSumParams& params, int index, float sum) {
  const FinishParams& finish = params.finish;
  const int row = index / finish.out_features;
  const int column = index % finish.out_features;
  const int expert = expert_of(params.experts, row);
  float bias = 0.0f;
  if (finish.bias != nullptr) bias = finish.bias[expert * finish.out_features + column];
  const float value =
      stored_value<FinishVariant::kAny>(finish, sum * scale_of(params, expert, column), bias);
  float* out = static_cast<float*>(finish.out) + index;
  *out = finish.accumulate ? value + *out : value;
}

// Writes this rank's planes of `count` elements from `begin` on into another rank's buffer.
__device__ __forceinline__ void send_planes(const PeerSumParams& params, int begin, int count,
                                            float* buffer) {
  const PeerLinks& links = params.links;
  const int num_planes = params.first_plane[links.rank + 1] - params.first_plane[links.rank];
  const int total = params.num_rows * params.finish.out_features;
  for (int plane = 0; plane < num_planes; ++plane) {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      buffer[plane * kSumFloats + i] = params.planes[int64_t{plane} * total + begin + i];
    }
  }
}

// Returns element begin + i, folded from all ranks' planes.
template <bool kMailboxes>
__device__ __forceinline__ float folded(const PeerSumParams& params,
                                        const Rounds<kMailboxes>& rounds, int begin, int i) {
  const int64_t total = int64_t{params.num_rows} * params.finish.out_features;
  float stack[kMaxPartialSums];
  int rank = 0;
  for (int index = 0; index < params.fold_order.num_entries; ++index) {
    while (params.first_plane[rank + 1] <= index) ++rank;
    const int plane = index - params.first_plane[rank];
    float top;
    if (rank == params.links.rank) {
      top = params.planes[plane * total + begin + i];
    } else if (kMailboxes) {
      top = rounds.from(rank)[plane * kSumFloats + i];
    } else {
      top = rounds.from(rank)[plane * total + begin + i];
    }
    const FoldEntry fold = params.fold_order.entry(index);
    for (int at = fold.stack_index + fold.num_folds - 1; at >= fold.stack_index; --at) {
      top += stack[at];
    }
    stack[fold.stack_index] = top;
  }
  return stack[0];
}

template <bool kMailboxes>
__global__ void __launch_bounds__(kThreads) sum_kernel(const PeerSumParams params) {
  begin(params.links);
  Rounds<kMailboxes> rounds(params.links);
  const int total = params.num_rows * params.finish.out_features;
  for (int begin = blockIdx.x * kSumFloats; begin < total; begin += gridDim.x * kSumFloats) {
    const int count = min(kSumFloats, total - begin);
    rounds.send([&](int, float* buffer) { send_planes(params, begin, count, buffer); });
    for (int i = threadIdx.x; i < count; i += kThreads) {
      finish_sum(params, begin + i, folded(params, rounds, begin, i));
    }
    rounds.next();
  }
  rounds.end();
}

__global__ void __launch_bounds__(kThreads) two_shot_sum_kernel(const PeerSumParams params) {
  begin(params.links);
  Rounds<true> rounds(params.links);
  const PeerLinks& links = params.links;
  const int total = params.num_rows * params.finish.out_features;
  const int chunk = links.size * kSumFloats;
  for (int first = blockIdx.x * chunk; first < total; first += gridDim.x * chunk) {
    // Each rank folds its share of the chunk.
    const auto begin_of = [&](int rank) { return min(first + rank * kSumFloats, total); };
    const auto count_of = [&](int rank) { return begin_of(rank + 1) - begin_of(rank); };
    rounds.send([&](int other, float* buffer) {
      send_planes(params, begin_of(other), count_of(other), buffer);
    });
    const int begin = begin_of(links.rank);
    float sums[kSumFloats / kThreads];
#pragma unroll
    for (int k = 0; k < kSumFloats / kThreads; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= count_of(links.rank)) continue;
      sums[k] = folded(params, rounds, begin, i);
      finish_sum(params, begin + i, sums[k]);
    }
    rounds.next();
    rounds.send([&](int, float* buffer) {
#pragma unroll
      for (int k = 0; k < kSumFloats / kThreads; ++k) {
        const int i = threadIdx.x + k * kThreads;
        if (i < count_of(links.rank)) buffer[i] = sums[k];
      }
    });
    for (int other = 0; other < links.size; ++other) {
      if (other == links.rank) continue;
      const float* others = rounds.from(other);
      for (int i = threadIdx.x; i < count_of(other); i += kThreads) {
        finish_sum(params, begin_of(other) + i, others[i]);
      }
    }
    rounds.next();
  }
  rounds.end();
}

// --- gathering ---

template <bool kMailboxes>
__global__ void __launch_bounds__(kThreads)
    gather_columns_kernel(const GatherColumnsParams params) {
  begin(params.links);
  Rounds<kMailboxes> rounds(params.links);
  const PeerLinks& links = params.links;
  const int own_width = params.columns[links.rank].width();
  int total = 0;  // elements of the largest part
  for (int rank = 0; rank < links.size; ++rank) {
    total = max(total, params.num_rows * params.columns[rank].width());
  }
  const auto own = [&](int index) {
    return params.own[index / own_width * params.own_stride + index % own_width];
  };
  for (int begin = blockIdx.x * kBufferFloats; begin < total; begin += gridDim.x * kBufferFloats) {
    const auto count_of = [&](int rank) {
      return min(kBufferFloats, params.num_rows * params.columns[rank].width() - begin);
    };
    rounds.send([&](int, float* buffer) {
      for (int i = threadIdx.x; i < count_of(links.rank); i += kThreads) buffer[i] = own(begin + i);
    });
    for (int rank = 0; rank < links.size; ++rank) {
      const PeerColumns& columns = params.columns[rank];
      const float* part = rank == links.rank ? nullptr : rounds.from(rank);
      if (!kMailboxes && part != nullptr) part += begin;
      for (int i = threadIdx.x; i < count_of(rank); i += kThreads) {
        const int row = (begin + i) / columns.width();
        const int offset = (begin + i) % columns.width();
        const int column = offset < columns.count[0] ? columns.first[0] + offset
                                                     : columns.first[1] + offset - columns.count[0];
        params.out[row * params.out_stride + column] = part != nullptr ? part[i] : own(begin + i);
      }
    }
    rounds.next();
  }
  rounds.end();
}

template <bool kMailboxes>
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const GatherRowsParams params) {
  begin(params.links);
  Rounds<kMailboxes> rounds(params.links);
  const PeerLinks& links = params.links;
  const int total = params.num_rows * params.dim;
  const auto owner_of = [&](int index) {
    const int32_t output = params.token_ids[index / params.dim] + params.index_offset;
    int rank = 0;
    while (rank + 1 < links.size && params.first_output[rank + 1] <= output) ++rank;
    return rank;
  };
  for (int begin = blockIdx.x * kBufferFloats; begin < total; begin += gridDim.x * kBufferFloats) {
    const int count = min(kBufferFloats, total - begin);
    rounds.send([&](int, float* buffer) {
      for (int i = threadIdx.x; i < count; i += kThreads) {
        if (owner_of(begin + i) == links.rank) buffer[i] = params.own[begin + i];
      }
    });
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const int owner = owner_of(begin + i);
      float value;
      if (owner == links.rank) {
        value = params.own[begin + i];
      } else {
        value = rounds.from(owner)[kMailboxes ? i : begin + i];
      }
      params.out[begin + i] = value;
    }
    rounds.next();
  }
  rounds.end();
}

// The launch for `num_floats` elements, with `each` elements per block and round.
LaunchConfig config_of(const PeerLinks& links, int64_t num_floats, int64_t each) {
  const int64_t num_blocks = (num_floats + each - 1) / each;
  const bool waits = links.has_mailboxes();
  return {.grid = {static_cast<unsigned>(
              std::clamp<int64_t>(num_blocks, 1, waits ? links.num_blocks : kPeerBlocks))},
          .block = {kThreads},
          .overlaps_previous = true,
          .waits_for_peers = waits,
          .blocks_meet = waits};
}

void sum(Stream& stream, const PeerSumParams& params) {
  const int64_t total = int64_t{params.num_rows} * params.finish.out_features;
  const PeerLinks& links = params.links;
  if (params.two_shot) {
    return launch("two_shot_sum", stream, two_shot_sum_kernel,
                  config_of(links, total, int64_t{links.size} * kSumFloats), params);
  }
  launch("peer_sum", stream, links.has_mailboxes() ? sum_kernel<true> : sum_kernel<false>,
         config_of(links, total, kSumFloats), params);
}

void gather_columns(Stream& stream, const GatherColumnsParams& params) {
  const PeerLinks& links = params.links;
  int width = 0;
  for (int rank = 0; rank < links.size; ++rank) {
    width = std::max(width, params.columns[rank].width());
  }
  launch("gather_columns", stream,
         links.has_mailboxes() ? gather_columns_kernel<true> : gather_columns_kernel<false>,
         config_of(links, int64_t{params.num_rows} * width, kBufferFloats), params);
}

void gather_rows(Stream& stream, const GatherRowsParams& params) {
  const PeerLinks& links = params.links;
  launch("gather_rows", stream,
         links.has_mailboxes() ? gather_rows_kernel<true> : gather_rows_kernel<false>,
         config_of(links, int64_t{params.num_rows} * params.dim, kBufferFloats), params);
}

}  // namespace

PeerKernels peer_kernels() {
  return {.sum = sum, .gather_columns = gather_columns, .gather_rows = gather_rows};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
