#include "core/check.h"
#include "cuda/device/target.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_few.cuh"
#include "cuda/kernels/projection_many.cuh"
#include "cuda/kernels/projection_pack.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

void prepare_rows(Stream& stream, const PrepareParams& params) {
  SPECDEC_CHECK(params.format == WeightFormat::kAct);
  if (params.act_dtype == DType::kBF16) {
    launch_prepare_rows<ActFormat<Bf16>>(stream, params);
  } else {
    launch_prepare_rows<ActFormat<Half>>(stream, params);
  }
}

template <class Format>
void product_of(Stream& stream, const ProductParams& params) {
  const ProductPlan& plan = params.plan;
  if (!plan.few_rows) {
    return plan.column_tiles == 4 ? launch_many_rows<Format, 4>(stream, params)
                                  : launch_many_rows<Format, 8>(stream, params);
  }
  if (params.rows.num_rows <= 8) {
    return plan.tiles_at_once == 1 ? launch_few_rows<Format, 1, 1>(stream, params)
                                   : launch_few_rows<Format, 2, 1>(stream, params);
  }
  return plan.tiles_at_once == 1 ? launch_few_rows<Format, 1, 2>(stream, params)
                                 : launch_few_rows<Format, 2, 2>(stream, params);
}

void product(Stream& stream, const ProductParams& params) {
  SPECDEC_CHECK(params.format == WeightFormat::kAct);
  if (params.act_dtype == DType::kBF16) {
    product_of<ActFormat<Bf16>>(stream, params);
  } else {
    product_of<ActFormat<Half>>(stream, params);
  }
}

}  // namespace

ProjectionKernels projection_kernels() {
  return {.pack = pack_weights, .prepare_rows = prepare_rows, .product = product};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
