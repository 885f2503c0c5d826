// The batch of a decoding step where recorded work expects it: padded to a few sizes, in one piece
// of device memory whose layout follows from them.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/op_args.h"
#include "cuda/backend/staging.h"

namespace specdec::cuda {

// Rows or requests come in every number there is: a graph each would be many, and padding is cheap.
int padded_count(int count);

class StagedBatch {
 public:
  static constexpr int kMaxRows = 128;  // of batches that are padded

  StagedBatch(Device& device, Staging& staging) : device_(device), staging_(staging) {}

  static bool serves(const BatchView& batch) {
    return batch.num_rows <= kMaxRows && batch.num_requests <= kMaxRows;
  }
  // Copies the batch and returns it padded: rows past its own are padding of the null block, which
  // reads no features and leaves no state, and requests past its own have no rows. `moved`: earlier
  // results point to memory that is gone.
  BatchView put(const BatchView& batch, bool* moved);

 private:
  Device& device_;
  Staging& staging_;
  Buffer memory_;
  std::vector<std::byte> image_;
};

}  // namespace specdec::cuda
