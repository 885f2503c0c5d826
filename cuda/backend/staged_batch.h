// The batch of a decoding step, at the addresses that recorded work names: padded to a few sizes,
// in one piece of device memory whose layout follows from the size.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/op_args.h"
#include "cuda/backend/staging.h"

namespace specdec::cuda {

// Rounds a number of rows or requests up to one of a few sizes: a graph per number would be many
// graphs, and padding is cheap.
int padded_count(int count);

class StagedBatch {
 public:
  static constexpr int kMaxRows = 128;  // larger batches are not padded

  StagedBatch(Device& device, Staging& staging) : device_(device), staging_(staging) {}

  static bool serves(const BatchView& batch) {
    return batch.num_rows <= kMaxRows && batch.num_requests <= kMaxRows;
  }
  // Copies the batch to the device and returns it padded. Added rows belong to the null block, read
  // no features, leave no state and are of no request; added requests have no rows and no recurrent
  // state. `moved`: addresses of earlier results are no longer valid.
  BatchView put(const BatchView& batch, bool* moved);

 private:
  Device& device_;
  Staging& staging_;
  Buffer memory_;
  std::vector<std::byte> image_;
};

}  // namespace specdec::cuda
