#include "cuda/common/target.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_pack.cuh"
#include "cuda/kernels/projection_product.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

void prepare_rows(Stream& stream, const PrepareParams& params) {
  if (params.act_dtype == DType::kBF16) {
    launch_prepare_rows<Bf16>(stream, params);
  } else {
    launch_prepare_rows<Half>(stream, params);
  }
}

void run_product(Stream& stream, const ProductParams& params) {
  switch (params.format) {
    case WeightFormat::kAct:
      return product_by_dtype<ActFormat>(stream, params);
    case WeightFormat::kInt8:
      return product_int8(stream, params);
    case WeightFormat::kInt8Grouped:
      return product_int8_grouped(stream, params);
    case WeightFormat::kInt8GroupedMin:
      return product_int8_grouped_min(stream, params);
    case WeightFormat::kInt4Grouped:
      return product_int4_grouped(stream, params);
    case WeightFormat::kInt4GroupedMin:
      return product_int4_grouped_min(stream, params);
    case WeightFormat::kFp8:
      return product_fp8(stream, params);
    case WeightFormat::kFp8Grouped:
      return product_fp8_grouped(stream, params);
  }
}

}  // namespace

decltype(ProjectionKernels::wide_product) wide_product();  // projection_wide.cu
// projection_plain.cu
void unpack_weights(Stream& stream, const UnpackParams& params);
void finish_sums(Stream& stream, const FinishSumsParams& params);

ProjectionKernels projection_kernels() {
  return {.pack = pack_weights,
          .prepare_rows = prepare_rows,
          .product = run_product,
          .wide_product = wide_product(),
          .unpack = unpack_weights,
          .finish_sums = finish_sums};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
