// How many ranks should share a draft model: more ranks read its weights faster, but wait for each
// other twice a layer.
#pragma once

#include <span>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "specdec/model_facts.h"

namespace specdec {

// Measured speeds of a group of ranks.
struct GroupSpeed {
  double bytes_per_second_alone = 0;     // of weights, that one rank reads while the others wait
  double bytes_per_second_together = 0;  // that each reads while all do
  double exchange_seconds = 0;           // of an exchange of one row
};
// Takes some tens of milliseconds. All ranks call it at the same point, and get what the first one
// has measured.
GroupSpeed measure_group(Backend& backend, Communicator& ranks);

// The number of ranks that run a pass over one row the fastest. `facts` are by that number, in
// rising order.
int choose_draft_size(std::span<const ModelFacts> facts, const GroupSpeed& speed);

}  // namespace specdec
