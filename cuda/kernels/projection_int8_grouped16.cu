#include "cuda/common/target.cuh"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_dispatch.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void project_int8_grouped16(Stream& stream, const ProjectionParams& params) {
  project_by_dtype<Int8Grouped16Format>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
