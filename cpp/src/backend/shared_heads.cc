#include "backend/shared_heads.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {

void SharedHeads::gather_row(std::span<const std::span<const std::byte>> parts, int64_t row,
                             int head_dim, float* q_and_k) const {
  float* k = q_and_k + int64_t{num_heads()} * head_dim;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const HeadShare& share = by_rank[rank];
    const int64_t width = part_width(static_cast<int>(rank), head_dim);
    SPECDEC_CHECK_GE(parts[rank].size(), (row + 1) * width * sizeof(float));
    const float* from = reinterpret_cast<const float*>(parts[rank].data()) + row * width;
    const int64_t num_q = int64_t{share.num_heads} * head_dim;
    std::copy_n(from, num_q, q_and_k + int64_t{share.first_head} * head_dim);
    std::copy_n(from + num_q, width - num_q, k + int64_t{share.first_kv_head} * head_dim);
  }
}

std::vector<int64_t> SharedHeads::bounds(int head_dim) const {
  std::vector<int64_t> bounds;
  for (const HeadShare& share : by_rank) bounds.push_back(int64_t{share.first_head} * head_dim);
  bounds.push_back(int64_t{num_heads()} * head_dim);
  return bounds;
}

}  // namespace specdec
