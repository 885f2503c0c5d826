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
void product_of_columns(Stream& stream, const ProductParams& params) {
  constexpr bool kHasPairs =
      Format::kMaxTilesAtOnce > 1 && !kIsPartial && kVariant == FinishVariant::kPlain &&
      (kFinish == Finish::kStore || kFinish == Finish::kBest ||
       (kFinish == Finish::kActivateGated && kSource != RowSource::kRecords));
  if constexpr (kHasPairs) {
    using Pairs = FewRowsKind<kFinish, kIsPartial, kSource, 2, kColumns, kVariant>;
    if (params.plan.tiles_at_once > 1) return launch_few_rows<Format, Pairs>(stream, params);
  }
  using Kind = FewRowsKind<kFinish, kIsPartial, kSource, 1, kColumns, kVariant>;
  launch_few_rows<Format, Kind>(stream, params);
}
template <class Format, Finish kFinish, bool kIsPartial, FinishVariant kVariant, RowSource kSource>
void product_of_source(Stream& stream, const ProductParams& params) {
  if (params.rows.num_rows <= 8) {
    return product_of_columns<Format, kFinish, kIsPartial, kVariant, kSource, 1>(stream, params);
  }
  if constexpr (kSource != RowSource::kShared) {
    product_of_columns<Format, kFinish, kIsPartial, kVariant, kSource, 2>(stream, params);
  } else {
    SPECDEC_CHECK(false);
  }
}
template <class Format, Finish kFinish, FinishVariant kVariant = FinishVariant::kPlain,
          bool kIsPartial = false>
void product_of_few_rows(Stream& stream, const ProductParams& params) {
  switch (params.plan.row_source) {
    case RowSource::kRecords:
      if constexpr (kFinish != Finish::kBest && kVariant != FinishVariant::kLayerRows) {
        return product_of_source<Format, kFinish, kIsPartial, kVariant, RowSource::kRecords>(
            stream, params);
      }
      break;
    case RowSource::kShared:
      if constexpr (!kIsPartial) {
        return product_of_source<Format, kFinish, kIsPartial, kVariant, RowSource::kShared>(stream,
                                                                                            params);
      }
      break;
    case RowSource::kExchanged:
      return product_of_source<Format, kFinish, kIsPartial, kVariant, RowSource::kExchanged>(
          stream, params);
  }
  SPECDEC_CHECK(false);
}
// For the projections that begin a layer's blocks (qkv, and up or gate and up).
template <class Format, Finish kFinish, FinishVariant kVariant = FinishVariant::kPlain>
void product_of_block(Stream& stream, const ProductParams& params) {
  if (params.plan.row_source == RowSource::kRecords || is_plain(params.rows)) {
    return product_of_few_rows<Format, kFinish, kVariant>(stream, params);
  }
  product_of_few_rows<Format, kFinish, FinishVariant::kLayerRows>(stream, params);
}
template <class Format, Finish kFinish>
void product_of_capped(Stream& stream, const ProductParams& params) {
  if (params.finish.soft_cap == 0.0f) return product_of_few_rows<Format, kFinish>(stream, params);
  product_of_few_rows<Format, kFinish, FinishVariant::kSoftCap>(stream, params);
}
template <class Format>
void product_of_few_rows(Stream& stream, const ProductParams& params) {
  switch (params.finish.kind) {
    case Finish::kStore:
      if (params.slices.plan.is_whole()) {
        return product_of_capped<Format, Finish::kStore>(stream, params);
      }
      return product_of_few_rows<Format, Finish::kStore, FinishVariant::kAny, true>(stream, params);
    case Finish::kActivate:
      return product_of_block<Format, Finish::kActivate>(stream, params);
    case Finish::kActivateGated:
      return product_of_block<Format, Finish::kActivateGated>(stream, params);
    case Finish::kHeads:
      if (params.finish.heads.kv.dtype == DType::kI8) {
        return product_of_block<Format, Finish::kHeads, FinishVariant::kCodes>(stream, params);
      }
      return product_of_block<Format, Finish::kHeads>(stream, params);
    case Finish::kBest:
      return product_of_capped<Format, Finish::kBest>(stream, params);
  }
}

template <class Format>
void product_of(Stream& stream, const ProductParams& params) {
  if (params.plan.few_rows) return product_of_few_rows<Format>(stream, params);
  return params.plan.column_tiles == 4 ? launch_many_rows<Format, 4>(stream, params)
                                       : launch_many_rows<Format, 8>(stream, params);
}

template <template <class> class Format>
void product_by_dtype(Stream& stream, const ProductParams& params) {
  if (params.act_dtype == DType::kBF16) {
    product_of<Format<Bf16>>(stream, params);
  } else {
    product_of<Format<Half>>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
