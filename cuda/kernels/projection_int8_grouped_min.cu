#include "cuda/common/target.cuh"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_product.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void product_int8_grouped_min(Stream& stream, const ProductParams& params) {
  product_by_dtype<Int8GroupedMinFormat>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
