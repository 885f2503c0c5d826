// Storage of features under the block ids of a BlockPool, beside the KV cache: one row per slot,
// which the model's own pass writes for the slot's token and a drafter reads.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace specdec {

class FeatureCache {
 public:
  // Rows of `width` act elements for num_blocks usable blocks and the null block, and after them
  // one that no block has. Throws OutOfMemory saying what to lower.
  FeatureCache(Backend& backend, int width, int block_size, int num_blocks);

  const PagedRowsView& rows() const { return rows_; }

  // Bytes one block takes.
  static int64_t block_bytes(const Backend& backend, int width, int block_size);

 private:
  Buffer buffer_;
  PagedRowsView rows_;
};

}  // namespace specdec
