#include "cuda/common/target.cuh"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_product.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void product_int4_grouped(Stream& stream, const ProductParams& params) {
  product_by_dtype<Int4GroupedFormat>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
