// How the rows of one sequence in a pass continue its recurrent state.
#pragma once

#include <cstdint>
#include <vector>

namespace specdec {

// The state after `num_tokens` of a sequence's pending records and rows goes to a slot.
struct StateStore {
  int32_t num_tokens = 0;
  int32_t slot = 0;
};

// First come the state in a slot, then the pending records in order, then the rows. The rows up to
// the last store are those of committed tokens; the others are drafts, and leave records.
struct StateAccess {
  int32_t slot_in = -1;                 // -1: no token has been read
  std::vector<int32_t> pending = {};    // records of accepted drafts that the slot lacks
  std::vector<StateStore> stores = {};  // in rising order of num_tokens
  int32_t first_record = 0;             // draft i of the step writes record first_record + i

  int num_committed_rows() const {
    return stores.empty() ? 0 : stores.back().num_tokens - static_cast<int>(pending.size());
  }
};

}  // namespace specdec
