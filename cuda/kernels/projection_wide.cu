#include "core/check.h"
#include "cuda/kernels/projection_wide.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

decltype(ProjectionKernels::wide_product) wide_product();  // for projection.cu

namespace {

// Without code for sm_90a the kernels are empty.
#if defined(SPECDEC_EMULATED) || defined(SPECDEC_HAS_SM90A)
constexpr bool kIsBuilt = true;
#else
constexpr bool kIsBuilt = false;
#endif

template <class T>
void product_of(Stream& stream, const ProductParams& params) {
  if (params.plan.wide_rows == kWideRows[0]) {
    launch_wide_rows<T, kWideRows[0]>(stream, params);
  } else {
    launch_wide_rows<T, kWideRows[1]>(stream, params);
  }
}

void run_product(Stream& stream, const ProductParams& params) {
  SPECDEC_CHECK(params.format == WeightFormat::kAct);
  if (params.act_dtype == DType::kBF16) {
    product_of<Bf16>(stream, params);
  } else {
    product_of<Half>(stream, params);
  }
}

}  // namespace

decltype(ProjectionKernels::wide_product) wide_product() {
  return kIsBuilt ? run_product : nullptr;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
