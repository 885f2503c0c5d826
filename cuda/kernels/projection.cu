#include "cuda/common/target.cuh"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/projection_codes.cuh"
#include "cuda/kernels/projection_dispatch.cuh"
#include "cuda/kernels/projection_pack.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

void prepare_rows(Stream& stream, const PrepareParams& params) {
  if (params.act_dtype == DType::kBF16) {
    launch_prepare_rows<Bf16>(stream, params);
  } else {
    launch_prepare_rows<Half>(stream, params);
  }
}

constexpr int kReorderThreads = 256;

__global__ void __launch_bounds__(kReorderThreads) reorder_rows_kernel(const ReorderParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int j = blockIdx.y * kReorderThreads + threadIdx.x;
  if (j >= params.dim) return;
  const int64_t row = blockIdx.x;
  const auto* from = static_cast<const uint16_t*>(params.rows) + row * params.row_stride;
  static_cast<uint16_t*>(params.out)[row * params.dim + j] = from[params.order[j]];
}

void reorder_rows(Stream& stream, const ReorderParams& params) {
  launch("reorder_rows", stream, reorder_rows_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows),
                   static_cast<unsigned>((params.dim + kReorderThreads - 1) / kReorderThreads)},
          .block = {kReorderThreads},
          .overlaps_previous = true},
         params);
}

void run_projection(Stream& stream, const ProjectionParams& params) {
  switch (params.format) {
    case WeightFormat::kAct:
      return project_by_dtype<ActFormat>(stream, params);
    case WeightFormat::kInt8:
      return project_int8(stream, params);
    case WeightFormat::kInt8Grouped:
      return project_int8_grouped(stream, params);
    case WeightFormat::kInt8GroupedMin:
      return project_int8_grouped_min(stream, params);
    case WeightFormat::kInt4Grouped:
      return project_int4_grouped(stream, params);
    case WeightFormat::kInt4GroupedMin:
      return project_int4_grouped_min(stream, params);
    case WeightFormat::kInt4GroupedZero:
      return project_int4_grouped_zero(stream, params);
    case WeightFormat::kInt4Table:
      return project_int4_table(stream, params);
    case WeightFormat::kInt8Grouped16:
      return project_int8_grouped16(stream, params);
    case WeightFormat::kFp8:
      return project_fp8(stream, params);
    case WeightFormat::kFp8Grouped:
      return project_fp8_grouped(stream, params);
  }
}

}  // namespace

decltype(ProjectionKernels::project_wide) project_wide();      // projection_wide.cu
decltype(ProjectionKernels::project_stream) project_stream();  // projection_stream.cu
// projection_plain.cu
void unpack_weights(Stream& stream, const UnpackParams& params);
void finish_sums(Stream& stream, const FinishSumsParams& params);

ProjectionKernels projection_kernels() {
  return {.pack = pack_weights,
          .prepare_rows = prepare_rows,
          .reorder_rows = reorder_rows,
          .project = run_projection,
          .project_wide = project_wide(),
          .project_stream = project_stream(),
          .unpack = unpack_weights,
          .finish_sums = finish_sums};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
