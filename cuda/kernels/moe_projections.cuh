// Projections of all experts in one grid: the kernels of projection_few.cuh and projection_many.cuh
// on the rows of each expert.
#pragma once

#include "core/check.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/projection_few.cuh"
#include "cuda/kernels/projection_many.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// The projection of one expert for sorted choices [begin, end).
template <class Format>
__device__ __forceinline__ ProjectionParams expert_projection(const ExpertProjectionsParams& params,
                                                              int expert, int begin, int end) {
  ProjectionParams projection = params.projection;
  const unsigned char* weights = static_cast<const unsigned char*>(params.weights[expert]);
  projection.weights = weights;
  if (params.scales_offset != 0) {
    projection.finish.scales = reinterpret_cast<const float*>(weights + params.scales_offset);
  }
  if (projection.finish.bias != nullptr) {
    projection.finish.bias += int64_t{expert} * projection.finish.out_features;
  }
  projection.rows.num_rows = end - begin;
  if (projection.rows.row_ids != nullptr) {
    projection.rows.row_ids += begin;
  } else {
    projection.records = static_cast<const unsigned char*>(projection.records) +
                         int64_t{begin} * projection.num_k_blocks * kRecordBytes;
  }
  if (projection.finish.kind == Finish::kStore) {
    projection.finish.out = static_cast<float*>(projection.finish.out) +
                            int64_t{begin} * projection.finish.out_features;
  } else {
    const int dim = projection.finish.kind == Finish::kActivateGated
                        ? projection.finish.out_features / 2
                        : projection.finish.out_features;
    projection.finish.out =
        static_cast<typename Format::Element*>(projection.finish.out) + int64_t{begin} * dim;
  }
  return projection;
}

// The `number`-th expert that has rows, from 0; -1 if fewer have rows. Every thread of the block
// calls it.
__device__ __forceinline__ int expert_with_rows(const ExpertProjectionsParams& params, int number) {
  static_assert(kRowThreads >= kMaxExperts);
  __shared__ int counts[kRowWarps];
  __shared__ int expert;
  const int own = threadIdx.x;
  const bool has_rows =
      own < params.num_experts && __ldcg(params.cu_rows + own) < __ldcg(params.cu_rows + own + 1);
  const uint32_t votes = __ballot_sync(kAllLanes, has_rows);
  if (own % kWarpSize == 0) counts[own / kWarpSize] = __popc(votes);
  if (own == 0) expert = -1;
  __syncthreads();
  int before = __popc(votes & ((1u << own % kWarpSize) - 1));
#pragma unroll 1
  for (int warp = 0; warp < own / kWarpSize; ++warp) before += counts[warp];
  if (has_rows && before == number) expert = own;
  __syncthreads();
  return expert;
}

// Grid: [blocks of an expert, row tiles, experts that may have rows]. Only the device knows which
// experts have rows; a block for each of a hundred others would delay the few. An expert mostly has
// few rows: a block takes 8 of them, and blocks of further rows read the weights again, from L2.
// Two blocks per SM, as for the other few-rows kernels: one is the next kernel's.
template <class Format, Finish kFinish, bool kIsPartial>
__global__ void __launch_bounds__(kRowThreads, 2)
    few_rows_of_experts_kernel(const ExpertProjectionsParams params) {
  using Kind = FewRowsKind<kFinish, kIsPartial, RowSource::kRecords,
                           kIsPartial ? 1 : Format::kMaxTilesAtOnce, 1, FinishVariant::kPlain>;
  SPECDEC_SHARED_BYTES(shared);
  // Which experts have rows must be known before weights are loaded.
  if (!params.rows_are_known) {
    ptx::wait_for_previous();
    ptx::let_next_start();
  }
  const int expert = expert_with_rows(params, blockIdx.z);
  const int begin = expert < 0 ? 0 : __ldcg(params.cu_rows + expert) + blockIdx.y * 8;
  const int end = expert < 0 ? 0 : __ldcg(params.cu_rows + expert + 1);
  if (begin >= end) {
    if (params.rows_are_known) {
      ptx::let_next_start();  // the next kernel starts once all blocks have called it
      ptx::wait_for_previous();
    }
    return;
  }
  const ProjectionParams projection =
      expert_projection<Format>(params, expert, begin, min(end, begin + 8));
  FewRows<Format, Kind>(projection, shared).run();
}

template <class Format, Finish kFinish, bool kIsPartial = false>
void launch_few_rows_of_experts(Stream& stream, const ExpertProjectionsParams& params) {
  const ProjectionParams& projection = params.projection;
  launch("moe: few rows", stream, few_rows_of_experts_kernel<Format, kFinish, kIsPartial>,
         {.grid = {static_cast<unsigned>(projection.tiling.num_blocks),
                   static_cast<unsigned>(projection.rows.num_rows + 7) / 8,
                   static_cast<unsigned>(params.most_with_rows)},
          .block = {kRowThreads},
          .shared_bytes = static_cast<size_t>(few_rows_exchange_bytes(8, Format::kMaxTilesAtOnce)),
          .overlaps_previous = true,
          .lets_next_start_early = params.rows_are_known,
          .reads_before_wait = params.rows_are_known},
         params);
}

// Grid: [row tiles, blocks of tiles, experts].
template <class Format, int kColumns>
__global__ void __launch_bounds__(kRowThreads, Format::kManyRowsBlocksPerSm)
    many_rows_of_experts_kernel(const ExpertProjectionsParams params) {
  SPECDEC_SHARED_BYTES(shared);
  ptx::wait_for_previous();
  const int begin = params.cu_rows[blockIdx.z];
  const int end = params.cu_rows[blockIdx.z + 1];
  if (static_cast<int>(blockIdx.x) * kColumns * 8 >= end - begin) return;
  const ProjectionParams projection = expert_projection<Format>(params, blockIdx.z, begin, end);
  ManyRows<Format, kColumns, false>(projection, shared).run();
}

template <class Format>
void launch_expert_projections(Stream& stream, const ExpertProjectionsParams& params) {
  const ProjectionParams& projection = params.projection;
  const unsigned experts = static_cast<unsigned>(params.num_experts);
  const int num_rows = projection.rows.num_rows;
  if (projection.tiling.few_rows) {
    if (projection.finish.kind == Finish::kActivateGated) {
      return launch_few_rows_of_experts<Format, Finish::kActivateGated>(stream, params);
    }
    SPECDEC_CHECK(projection.finish.kind == Finish::kStore);
    if (projection.slices.fold_order.is_whole()) {
      return launch_few_rows_of_experts<Format, Finish::kStore>(stream, params);
    }
    return launch_few_rows_of_experts<Format, Finish::kStore, true>(stream, params);
  }
  constexpr int kColumns = 4;
  const unsigned row_tiles = (num_rows + kColumns * 8 - 1) / (kColumns * 8);
  const unsigned tile_blocks = (projection.num_tiles + kManyRowsTiles - 1) / kManyRowsTiles;
  launch("moe: many rows", stream, many_rows_of_experts_kernel<Format, kColumns>,
         {.grid = {row_tiles, tile_blocks, experts},
          .block = {kRowThreads},
          .shared_bytes = ManyRows<Format, kColumns, false>::kSharedBytes,
          .overlaps_previous = true},
         params);
}

template <template <class> class Format>
void expert_projections_by_dtype(Stream& stream, const ExpertProjectionsParams& params) {
  if (params.projection.act_dtype == DType::kBF16) {
    launch_expert_projections<Format<Bf16>>(stream, params);
  } else {
    launch_expert_projections<Format<Half>>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
