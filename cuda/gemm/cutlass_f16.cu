#include "cuda/gemm/cutlass_kernel.cuh"
#include "cuda/gemm/cutlass_ways.h"

namespace specdec::cuda::native {

std::vector<CutlassWay> cutlass_f16() {
  using T = cutlass::half_t;
  return {{SmallTile::kName, launch_cutlass<T, SmallTile>},
          {LargeTile::kName, launch_cutlass<T, LargeTile>}};
}

}  // namespace specdec::cuda::native
