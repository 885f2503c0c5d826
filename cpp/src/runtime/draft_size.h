// How many ranks should share a draft model: more ranks read its weights faster, but wait for each
// other twice a layer.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/config.h"
#include "specdec/quantization.h"

namespace specdec {

// What a pass over one row takes of the machine.
struct DraftPassWork {
  int64_t weight_bytes = 0;  // of matrices
  int num_exchanges = 0;     // where several ranks share the model
};
DraftPassWork draft_pass_work(const ModelConfig& config, Quantization quantization);

// What the ranks of a group can do, measured.
struct GroupSpeed {
  double bytes_per_second_alone = 0;     // of weights, that one rank reads while the others wait
  double bytes_per_second_together = 0;  // that each reads while all do
  double exchange_seconds = 0;           // of an exchange of one row
};
// Takes some tens of milliseconds. All ranks call it at the same point, and get what the first one
// has measured.
GroupSpeed measure_group(Backend& backend, Communicator& ranks);

// The fastest of `sizes`, numbers of ranks in rising order.
int choose_draft_size(const DraftPassWork& work, const GroupSpeed& speed,
                      std::span<const int> sizes);

}  // namespace specdec
