#include "cuda/backend/kv_runs.h"

namespace specdec::cuda {
namespace {

bool same_shape(const PagedKvView& a, const PagedKvView& b) {
  return a.dtype == b.dtype && a.num_blocks == b.num_blocks && a.block_size == b.block_size &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim;
}

}  // namespace

std::vector<std::span<const PagedKvView>> runs_of_one_shape(std::span<const PagedKvView> layers) {
  std::vector<std::span<const PagedKvView>> runs;
  for (size_t begin = 0; begin < layers.size(); begin += runs.back().size()) {
    size_t end = begin + 1;
    while (end < layers.size() && same_shape(layers[begin], layers[end])) ++end;
    runs.push_back(layers.subspan(begin, end - begin));
  }
  return runs;
}

}  // namespace specdec::cuda
