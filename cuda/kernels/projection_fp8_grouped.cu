#include "cuda/common/target.cuh"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_product.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void product_fp8_grouped(Stream& stream, const ProductParams& params) {
  product_by_dtype<Fp8GroupedFormat>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
