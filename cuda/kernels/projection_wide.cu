#include "core/check.h"
#include "cuda/kernels/projection_wide.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

decltype(ProjectionKernels::project_wide) project_wide();  // for projection.cu

namespace {

// Without code for sm_90a the kernels are empty.
#if defined(SPECDEC_EMULATED) || defined(SPECDEC_HAS_SM90A)
constexpr bool kIsBuilt = true;
#else
constexpr bool kIsBuilt = false;
#endif

void run_projection(Stream& stream, const ProjectionParams& params) {
  SPECDEC_CHECK(params.format == WeightFormat::kAct);
  if (params.act_dtype == DType::kBF16) {
    launch_wide_rows<Bf16>(stream, params);
  } else {
    launch_wide_rows<Half>(stream, params);
  }
}

}  // namespace

decltype(ProjectionKernels::project_wide) project_wide() {
  return kIsBuilt ? run_projection : nullptr;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
