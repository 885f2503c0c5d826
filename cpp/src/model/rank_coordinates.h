#pragma once

#include "comm/communicator.h"

namespace specdec {

// A rank's position among the ranks of a model. With several stages, the layers are cut into that
// many consecutive runs: the first stage has the embedding, the last one the final norm and the LM
// head.
struct RankCoordinates {
  Communicator* ranks = nullptr;   // ranks of this stage, which share each layer; null: one rank
  Communicator* stages = nullptr;  // all ranks; null: there is one stage
  int stage = 0;
  int num_stages = 1;
  int previous_rank = -1;  // in `stages`: the rank that sends the rows here, and the next one
  int next_rank = -1;

  // Number of ranks in a stage.
  int stage_size() const { return ranks != nullptr ? ranks->size() : 1; }
  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage + 1 == num_stages; }
  // The layers of this stage.
  int first_layer(int num_layers) const { return num_layers * stage / num_stages; }
  int end_layer(int num_layers) const { return num_layers * (stage + 1) / num_stages; }
};

}  // namespace specdec
