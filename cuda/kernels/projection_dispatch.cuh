// Dispatches a projection to the kernel of its tiling, epilogue and rows.
#pragma once

#include "core/check.h"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_few.cuh"
#include "cuda/kernels/projection_many.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// Two tiles per warp only where projections are large. A soft cap excludes it: a pass has at most
// one projection with a soft cap.
template <class Format, Finish kFinish, bool kIsPartial, FinishVariant kVariant, RowSource kSource,
          int kColumns>
void project_columns(Stream& stream, const ProjectionParams& params) {
  constexpr bool kHasPairs =
      Format::kMaxTilesAtOnce > 1 && !kIsPartial && kVariant == FinishVariant::kPlain &&
      (kFinish == Finish::kStore || kFinish == Finish::kBest ||
       (kFinish == Finish::kActivateGated && kSource != RowSource::kRecords));
  if constexpr (kHasPairs) {
    using Pairs = FewRowsKind<kFinish, kIsPartial, kSource, 2, kColumns, kVariant>;
    if (params.tiling.tiles_at_once > 1) return launch_few_rows<Format, Pairs>(stream, params);
  }
  using Kind = FewRowsKind<kFinish, kIsPartial, kSource, 1, kColumns, kVariant>;
  launch_few_rows<Format, Kind>(stream, params);
}
template <class Format, Finish kFinish, bool kIsPartial, FinishVariant kVariant, RowSource kSource>
void project_from(Stream& stream, const ProjectionParams& params) {
  if (params.rows.num_rows <= 8) {
    return project_columns<Format, kFinish, kIsPartial, kVariant, kSource, 1>(stream, params);
  }
  if constexpr (kSource != RowSource::kShared) {
    project_columns<Format, kFinish, kIsPartial, kVariant, kSource, 2>(stream, params);
  } else {
    SPECDEC_CHECK(false);
  }
}
template <class Format, Finish kFinish, FinishVariant kVariant = FinishVariant::kPlain,
          bool kIsPartial = false>
void project_few_rows(Stream& stream, const ProjectionParams& params) {
  switch (params.tiling.row_source) {
    case RowSource::kRecords:
      if constexpr (kFinish != Finish::kBest && kVariant != FinishVariant::kLayerRows) {
        return project_from<Format, kFinish, kIsPartial, kVariant, RowSource::kRecords>(stream,
                                                                                        params);
      }
      break;
    case RowSource::kShared:
      if constexpr (!kIsPartial) {
        return project_from<Format, kFinish, kIsPartial, kVariant, RowSource::kShared>(stream,
                                                                                       params);
      }
      break;
    case RowSource::kExchanged:
      return project_from<Format, kFinish, kIsPartial, kVariant, RowSource::kExchanged>(stream,
                                                                                        params);
  }
  SPECDEC_CHECK(false);
}
// For the projections that begin a layer's blocks (qkv, and up or gate and up).
template <class Format, Finish kFinish, FinishVariant kVariant = FinishVariant::kPlain>
void project_block_rows(Stream& stream, const ProjectionParams& params) {
  if (params.tiling.row_source == RowSource::kRecords || is_plain(params.rows)) {
    return project_few_rows<Format, kFinish, kVariant>(stream, params);
  }
  project_few_rows<Format, kFinish, FinishVariant::kLayerRows>(stream, params);
}
template <class Format, Finish kFinish>
void project_capped(Stream& stream, const ProjectionParams& params) {
  if (params.finish.soft_cap == 0.0f) return project_few_rows<Format, kFinish>(stream, params);
  project_few_rows<Format, kFinish, FinishVariant::kSoftCap>(stream, params);
}
template <class Format>
void project_few_rows(Stream& stream, const ProjectionParams& params) {
  switch (params.finish.kind) {
    case Finish::kStore:
      if (params.slices.fold_order.is_whole()) {
        return project_capped<Format, Finish::kStore>(stream, params);
      }
      return project_few_rows<Format, Finish::kStore, FinishVariant::kAny, true>(stream, params);
    case Finish::kActivate:
      return project_block_rows<Format, Finish::kActivate>(stream, params);
    case Finish::kActivateGated:
      return project_block_rows<Format, Finish::kActivateGated>(stream, params);
    case Finish::kHeads:
      if (params.finish.heads.kv.dtype == DType::kI8) {
        return project_block_rows<Format, Finish::kHeads, FinishVariant::kCodes>(stream, params);
      }
      return project_block_rows<Format, Finish::kHeads>(stream, params);
    case Finish::kBest:
      return project_capped<Format, Finish::kBest>(stream, params);
  }
}

template <class Format>
void project_as(Stream& stream, const ProjectionParams& params) {
  if (params.tiling.few_rows) return project_few_rows<Format>(stream, params);
  return params.tiling.column_tiles == 4 ? launch_many_rows<Format, 4>(stream, params)
                                         : launch_many_rows<Format, 8>(stream, params);
}

template <template <class> class Format>
void project_by_dtype(Stream& stream, const ProjectionParams& params) {
  if (params.act_dtype == DType::kBF16) {
    project_as<Format<Bf16>>(stream, params);
  } else {
    project_as<Format<Half>>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
