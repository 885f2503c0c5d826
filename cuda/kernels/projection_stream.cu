#include "cuda/kernels/projection_stream.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

decltype(ProjectionKernels::project_stream) project_stream();  // for projection.cu

namespace {

// Without code for sm_90a the kernels are empty.
#if defined(SPECDEC_EMULATED) || defined(SPECDEC_HAS_SM90A)
constexpr bool kIsBuilt = true;
#else
constexpr bool kIsBuilt = false;
#endif

template <template <class> class Format>
void project_by_dtype(Stream& stream, const ProjectionParams& params) {
  if (params.act_dtype == DType::kBF16) {
    project_stream_as<Format<Bf16>>(stream, params);
  } else {
    project_stream_as<Format<Half>>(stream, params);
  }
}

void run_projection(Stream& stream, const ProjectionParams& params) {
  SPECDEC_CHECK(can_stream(params.format));
  if (params.format == WeightFormat::kAct) {
    project_by_dtype<ActFormat>(stream, params);
  } else {
    project_by_dtype<Int8Format>(stream, params);
  }
}

}  // namespace

decltype(ProjectionKernels::project_stream) project_stream() {
  return kIsBuilt ? run_projection : nullptr;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
