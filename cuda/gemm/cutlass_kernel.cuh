// One tile shape of CUTLASS's collective GEMM for compute capability 9.0, launched like our own
// kernels. Compiled for GPUs only, never emulated.
//
// M are rows and N are outputs; both operands are contiguous in k. Sums are [row][output].
#pragma once

#include <cutlass/cutlass.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "core/check.h"
#include "core/str_cat.h"
#include "cuda/common/target.cuh"
#include "cuda/gemm/gemm.h"

namespace specdec::cuda::native {

// 128 x 128: one tile covers the rows of the smallest GEMMs here, and 512 rows by 4096 outputs are
// 128 tiles, about one per SM.
struct SmallTile {
  using Shape = cute::Shape<cute::_128, cute::_128, cute::_64>;
  static constexpr int kClusterRows = 1;  // blocks
  static constexpr const char* kName = "cutlass 128x128";
};
// 128 x 256: two tiles share the weights they read. This reads the fewest bytes from L2 for many
// rows.
struct LargeTile {
  using Shape = cute::Shape<cute::_128, cute::_256, cute::_64>;
  static constexpr int kClusterRows = 2;
  static constexpr const char* kName = "cutlass 128x256";
};

inline constexpr int kAlignedSums = 16 / sizeof(float);

template <class T, class Tile>
struct CutlassGemm {
  using Cluster = cute::Shape<cute::Int<Tile::kClusterRows>, cute::_1, cute::_1>;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  static constexpr int kAlignment = 16 / sizeof(T);
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tile::Shape, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, kAlignedSums,
      float, RowMajor, kAlignedSums,
      cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, kAlignment, T, ColumnMajor,
      kAlignment, float, typename Tile::Shape, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  // One GEMM, no batch; tiles in a fixed order.
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, cutlass::gemm::PersistentScheduler>;
};

template <class T, class Tile>
__global__ void __launch_bounds__(CutlassGemm<T, Tile>::Kernel::MaxThreadsPerBlock,
                                  CutlassGemm<T, Tile>::Kernel::MinBlocksPerMultiprocessor)
    __cluster_dims__(Tile::kClusterRows, 1, 1)
        cutlass_kernel(const __grid_constant__
                       typename CutlassGemm<T, Tile>::Kernel::Params params) {
  SPECDEC_SHARED_BYTES(shared);
  typename CutlassGemm<T, Tile>::Kernel kernel;
  kernel(params, reinterpret_cast<char*>(shared));
}

template <class T, class Tile>
void launch_cutlass(Stream& stream, int num_multiprocessors, const GemmParams& params) {
  using Kernel = typename CutlassGemm<T, Tile>::Kernel;
  const GemmShape& shape = params.shape;
  SPECDEC_CHECK_EQ(shape.ld % kAlignedSums, 0);  // CUTLASS checks the other sizes itself
  const auto inputs = cute::make_stride(int64_t{shape.num_inputs}, cute::_1{}, int64_t{0});
  const auto sums = cute::make_stride(shape.ld, cute::_1{}, int64_t{0});
  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {shape.num_rows, shape.num_outputs, shape.num_inputs, 1};
  arguments.mainloop.ptr_A = static_cast<const T*>(params.rows);
  arguments.mainloop.dA = inputs;
  arguments.mainloop.ptr_B = static_cast<const T*>(params.weights);
  arguments.mainloop.dB = inputs;
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = params.accumulate ? 1.0f : 0.0f;
  arguments.epilogue.ptr_C = params.sums;
  arguments.epilogue.dC = sums;
  arguments.epilogue.ptr_D = params.sums;
  arguments.epilogue.dD = sums;
  arguments.hw_info.sm_count = num_multiprocessors;
  if (!Kernel::can_implement(arguments) || Kernel::get_workspace_size(arguments) != 0) {
    throw DeviceError(str_cat(Tile::kName, ": refuses ", shape.num_rows, " x ", shape.num_outputs,
                              " x ", shape.num_inputs));
  }
  const typename Kernel::Params native = Kernel::to_underlying_arguments(arguments, nullptr);
  const dim3 grid = Kernel::get_grid_shape(native);
  const dim3 block = Kernel::get_block_shape();
  launch(Tile::kName, stream, cutlass_kernel<T, Tile>,
         {.grid = {grid.x, grid.y, grid.z},
          .block = {block.x, block.y, block.z},
          .shared_bytes = static_cast<size_t>(Kernel::SharedStorageSize)},
         native);
}

}  // namespace specdec::cuda::native
