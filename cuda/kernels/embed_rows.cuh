// Lookups in packed matrices: pair(id, k) gives the elements k and k + 1 of row `id`, k even.
#pragma once

#include <cstdint>

#include "cuda/common/exact_math.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/pointwise.h"
#include "cuda/kernels/quantize_layout.cuh"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

template <class T>
struct ActRows {
  const unsigned char* weights;
  int num_k_blocks;

  __device__ float2 pair(int64_t id, int k) const {
    const int64_t offset = act_pair_offset(id, k, num_k_blocks);
    return unpack<T>(*reinterpret_cast<const uint32_t*>(weights + offset));
  }
};

struct CodeRows {
  const unsigned char* weights;
  CodeLayout layout;

  __device__ float2 pair(int64_t id, int k) const {
    const CodePlace place = code_place(id);
    const float2 scale = scale_and_min(weights, layout, place, k);
    return make_float2(weight_of(scale, code_of(weights, layout, place, k)),
                       weight_of(scale, code_of(weights, layout, place, k + 1)));
  }
};

// Puts the elements k and k + 1 of a token's embedding into row `row`.
template <class Rows>
__device__ __forceinline__ void embed_pair(const Rows& rows, const EmbedRowsParams& params, int row,
                                           int32_t token, int k) {
  const int64_t id = int64_t{token} + params.index_offset;
  const bool is_known = id >= 0 && id < params.num_embeddings;
  const float none = __uint_as_float(0x7fc00000u);
  float2 values = is_known ? rows.pair(id, k) : make_float2(none, none);
  values = make_float2(product(values.x, params.scale), product(values.y, params.scale));
  float* out = params.out + static_cast<int64_t>(row) * params.dim + k;
  out[0] = params.accumulate ? out[0] + values.x : values.x;
  if (k + 1 < params.dim) out[1] = params.accumulate ? out[1] + values.y : values.y;
}

// Calls `use` with what looks up the table's rows.
template <class Use>
void with_act_rows(const EmbedRowsParams& params, DType act_dtype, Use&& use) {
  const auto* weights = static_cast<const unsigned char*>(params.table);
  const int num_k_blocks = (params.dim + kBlockInputs - 1) / kBlockInputs;
  if (act_dtype == DType::kBF16) return use(ActRows<Bf16>{weights, num_k_blocks});
  use(ActRows<Half>{weights, num_k_blocks});
}
inline CodeRows code_rows(const EmbedRowsParams& params, const CodeLayout& layout) {
  return {static_cast<const unsigned char*>(params.table), layout};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
