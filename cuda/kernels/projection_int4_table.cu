#include "cuda/common/target.cuh"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_dispatch.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

void project_int4_table(Stream& stream, const ProjectionParams& params) {
  project_by_dtype<Int4TableFormat>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
