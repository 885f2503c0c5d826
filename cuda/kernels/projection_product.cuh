// Which kernel a product runs on.
#pragma once

#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_few.cuh"
#include "cuda/kernels/projection_many.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// kColumns: tiles of 8 rows.
template <class Format, int kColumns>
void product_of_few_rows(Stream& stream, const ProductParams& params) {
  if constexpr (Format::kMaxTilesAtOnce > 1) {
    if (params.plan.tiles_at_once > 1) return launch_few_rows<Format, 2, kColumns>(stream, params);
  }
  launch_few_rows<Format, 1, kColumns>(stream, params);
}

template <class Format>
void product_of(Stream& stream, const ProductParams& params) {
  if (params.plan.few_rows) {
    return params.rows.num_rows <= 8 ? product_of_few_rows<Format, 1>(stream, params)
                                     : product_of_few_rows<Format, 2>(stream, params);
  }
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
